//! Colours that differ in lightness as well as in hue, so that they survive colour blindness and
//! a black and white printer; and sizes of text.
//!
//! Bars: bare devices are grey, published caches orange, Forebay blue; within a family only the
//! lightness changes. Lines have a mark each as well.

use plotters::style::RGBColor;

/// Of figures, in pixels; on A4 a pixel is then 0.2 mm, and the smallest text 7 points.
pub(super) const WIDTH: i32 = 860;

/// Higher figures do not fit on a page of A4.
pub(super) const HIGHEST: i32 = 1170;

pub(super) const SMALL: i32 = 12;
pub(super) const NORMAL: i32 = 13;
pub(super) const TITLE: i32 = 14;

pub(super) const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
pub(super) const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

const fn rgb(value: u32) -> RGBColor {
    RGBColor((value >> 16) as u8, (value >> 8) as u8, value as u8)
}

/// What a bar stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

const CACHES: [u32; 3] = [0xb35900, 0xf0a030, 0xfbd7a3];
const OURS: [u32; 6] = [0x08306b, 0x2171b5, 0x5fa8d9, 0xa6cdea, 0xd6e8f6, 0x3f5f8a];
const LINES: [u32; 8] =
    [0x000000, 0xb03024, 0x2a7fbf, 0xe69f00, 0x4fae86, 0x8a6bb0, 0x7a5230, 0x8c8c8c];

fn of(colours: &[u32], index: usize) -> RGBColor {
    colours.get(index % colours.len().max(1)).map_or(INK, |colour| rgb(*colour))
}

/// Of a bar.
pub(super) fn bar(family: Family) -> RGBColor {
    match family {
        Family::Disk => rgb(0xa8a8a8),
        Family::ModelDisk => rgb(0xd4d4d4),
        Family::Ssd => rgb(0x4d4d4d),
        Family::ModelSsd => rgb(0x7d7d7d),
        Family::Published(index) => of(&CACHES, index),
        Family::Forebay(index) => of(&OURS, index),
    }
}

/// Of a line.
pub(super) fn line(index: usize) -> RGBColor {
    of(&LINES, index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lightness(RGBColor(r, g, b): RGBColor) -> f64 {
        0.2126 * f64::from(r) + 0.7152 * f64::from(g) + 0.0722 * f64::from(b)
    }

    #[test]
    fn neighbours_in_a_family_differ_in_lightness() {
        let families: [&[RGBColor]; 3] = [
            &[Family::Ssd, Family::ModelSsd, Family::Disk, Family::ModelDisk].map(bar),
            &[0, 1, 2].map(|index| bar(Family::Published(index))),
            &[0, 1, 2, 3, 4].map(|index| bar(Family::Forebay(index))),
        ];
        for family in families {
            for pair in family.windows(2) {
                assert!(lightness(pair[1]) - lightness(pair[0]) > 20.0, "{pair:?}");
            }
        }
        let lines: Vec<f64> = (0..4).map(|index| lightness(line(index))).collect();
        for pair in lines.windows(2) {
            assert!(pair[1] - pair[0] > 20.0, "{lines:?}");
        }
    }
}
