//! Colours that differ in lightness as well as in hue, so that they survive colour blindness and
//! a black and white printer.
//!
//! Bars: bare devices are grey, published caches orange, Forebay blue; within a family only the
//! lightness changes. Lines have a mark each as well.

/// Red, green and blue, a byte each.
pub(super) type Colour = u32;

pub(super) const WHITE: Colour = 0xffffff;
pub(super) const INK: Colour = 0x222222;
pub(super) const GRID: Colour = 0xdddddd;

const CACHES: [Colour; 3] = [0xb35900, 0xf0a030, 0xfbd7a3];
const OURS: [Colour; 6] = [0x08306b, 0x2171b5, 0x5fa8d9, 0xa6cdea, 0xd6e8f6, 0x3f5f8a];
const LINES: [Colour; 8] =
    [0x000000, 0xb03024, 0x2a7fbf, 0xe69f00, 0x4fae86, 0x8a6bb0, 0x7a5230, 0x8c8c8c];

/// As SVG has it.
pub(super) fn hex(colour: Colour) -> String {
    format!("#{colour:06X}")
}

/// What a bar stands for, in the order of bars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    Disk,
    ModelDisk,
    Ssd,
    ModelSsd,
    /// A cache as published; which one.
    Published(usize),
    /// A configuration of ours; which one.
    Forebay(usize),
}

/// Of a bar.
pub(super) fn bar(family: Family) -> Colour {
    match family {
        Family::Disk => 0xa8a8a8,
        Family::ModelDisk => 0xd4d4d4,
        Family::Ssd => 0x4d4d4d,
        Family::ModelSsd => 0x7d7d7d,
        Family::Published(index) => CACHES[index % CACHES.len()],
        Family::Forebay(index) => OURS[index % OURS.len()],
    }
}

/// Of a line.
pub(super) fn line(index: usize) -> Colour {
    LINES[index % LINES.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lightness(colour: Colour) -> f64 {
        let part = |shift: u32| f64::from(colour >> shift & 0xff);
        0.2126 * part(16) + 0.7152 * part(8) + 0.0722 * part(0)
    }

    #[test]
    fn neighbours_in_a_family_differ_in_lightness() {
        let families: [&[Colour]; 4] = [
            &[Family::Ssd, Family::ModelSsd, Family::Disk, Family::ModelDisk].map(bar),
            &[0, 1, 2].map(|index| bar(Family::Published(index))),
            &[0, 1, 2, 3, 4].map(|index| bar(Family::Forebay(index))),
            &[0, 1, 2, 3].map(line),
        ];
        for family in families {
            for pair in family.windows(2) {
                assert!(lightness(pair[1]) - lightness(pair[0]) > 20.0, "{pair:?}");
            }
        }
    }
}
