//! Axes: values, how they are placed, and which are named.

use std::ops::Range;

/// Size of small text, as at ticks, in pixels.
pub(super) const SMALL: i32 = 12;

/// About as wide as text is, in pixels.
pub(super) fn width_of(text: &str, size: i32) -> i32 {
    let width = |letter: char| match letter {
        'i' | 'j' | 'l' | 't' | 'f' | 'r' | ' ' | '.' | ',' | '/' | '-' => 0.34,
        'm' | 'w' | 'M' | 'W' | '%' => 0.85,
        letter if letter.is_ascii_digit() || letter.is_ascii_uppercase() => 0.62,
        _ => 0.55,
    };
    (text.chars().map(width).sum::<f64>() * f64::from(size)).ceil() as i32
}

/// One axis.
#[derive(Clone, Debug, Default)]
pub(super) struct Axis {
    pub(super) title: String,
    pub(super) log: bool,
    /// As placed: of logarithmic axes the logarithms.
    pub(super) range: Range<f64>,
    pub(super) ticks: Vec<(f64, String)>,
    /// Lines across the panel at the ticks.
    pub(super) lines: bool,
}

/// A short number for an axis.
fn tick(value: f64) -> String {
    let (value, unit) = match value.abs() {
        1e9.. => (value / 1e9, "G"),
        1e6.. => (value / 1e6, "M"),
        1e4.. => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{value:.3}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// The least and the greatest of some values that are above 0.
fn extremes(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let values = values.filter(|value| value.is_finite() && *value > 0.0);
    values.map(|value| (value, value)).reduce(|(l, m), (value, _)| (l.min(value), m.max(value)))
}

impl Axis {
    /// From 0 to about `most`, with round ticks.
    pub(super) fn linear(title: &str, most: f64) -> Self {
        let most = if most > 0.0 && most.is_finite() { most } else { 1.0 };
        let power = 10f64.powf((most / 4.0).log10().floor());
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
        let step = steps.into_iter().find(|step| most / step <= 4.5).unwrap_or(10.0 * power);
        let count = (most / step + 1e-9).floor() as usize;
        let ticks = (0..=count).map(|place| place as f64 * step).map(|value| (value, tick(value)));
        Axis {
            title: title.into(),
            log: false,
            range: 0.0..most,
            ticks: ticks.collect(),
            lines: true,
        }
    }

    /// Over these values, logarithmically; they are above 0.
    pub(super) fn logarithmic(title: &str, least: f64, most: f64) -> Self {
        let (least, most) =
            if least > 0.0 && most.is_finite() { (least, most) } else { (1.0, 10.0) };
        let range = least.log10()..most.log10().max(least.log10() + 1.0);
        let decades = range.start.ceil() as i32..=range.end.floor() as i32;
        let every = if decades.clone().count() > 6 { 2 } else { 1 };
        let mut ticks: Vec<(f64, String)> = decades
            .filter(|decade| decade % every == 0)
            .map(|decade| (f64::from(decade), tick(10f64.powi(decade))))
            .collect();
        if range.end - range.start < 1.7 {
            for decade in range.start.floor() as i32..=range.end.floor() as i32 {
                for factor in [2.0, 5.0f64] {
                    let place = f64::from(decade) + factor.log10();
                    if range.contains(&place) {
                        ticks.push((place, tick(factor * 10f64.powi(decade))));
                    }
                }
            }
            ticks.sort_by(|one, other| one.0.total_cmp(&other.0));
        }
        Axis { title: title.into(), log: true, range, ticks, lines: true }
    }

    /// For bars: from 0, or from a decade below the least where the range demands it.
    pub(super) fn for_bars(title: &str, values: impl Iterator<Item = f64>, headroom: f64) -> Self {
        /// Values that are more than so many times as large as others need a logarithmic axis.
        const WIDE: f64 = 30.0;
        let Some((least, most)) = extremes(values) else {
            return Axis::linear(title, 1.0);
        };
        if most / least < WIDE {
            return Axis::linear(title, most * (1.0 + headroom));
        }
        let floor = 10f64.powf((least / 1.5).log10().floor());
        let decades = (most / floor).log10();
        let title = format!("{title} (logarithmic)");
        Axis::logarithmic(&title, floor, most * 10f64.powf(decades * headroom * 1.1))
    }

    /// Names in a row, each in the middle of a place of width 1.
    pub(super) fn names(names: &[String]) -> Self {
        let ticks = names.iter().enumerate();
        let ticks = ticks.map(|(place, name)| (place as f64 + 0.5, name.clone())).collect();
        Axis { range: 0.0..names.len().max(1) as f64, ticks, ..Axis::default() }
    }

    /// Of shares of requests; every further nine takes as much room.
    pub(super) fn nines() -> Self {
        let names = [
            ("0", 0.0),
            ("50 %", 0.5),
            ("90 %", 0.9),
            ("99 %", 0.99),
            ("99.9 %", 0.999),
            ("99.99 %", 0.9999),
        ];
        Axis {
            title: "requests that were not slower".into(),
            range: 0.0..nine(LAST_SHARE),
            ticks: names.map(|(name, share)| (nine(share), name.to_owned())).into(),
            lines: true,
            ..Axis::default()
        }
    }

    /// Every second name, if all of them do not fit into so many pixels.
    pub(super) fn shown_ticks(&self, width: i32) -> Vec<&(f64, String)> {
        let names = self.ticks.len().max(1) as i32;
        let widest = self.ticks.iter().map(|(_, name)| width_of(name, SMALL)).max().unwrap_or(0);
        let thinned = !self.lines && (widest + 3) * names > width;
        self.ticks.iter().step_by(if thinned { 2 } else { 1 }).collect()
    }

    /// The pixel of a value between two pixels; never outside.
    pub(super) fn pixel(&self, value: f64, from: i32, to: i32) -> i32 {
        let place = if self.log { value.max(1e-300).log10() } else { value };
        self.pixel_of_place(place.clamp(self.range.start, self.range.end), from, to)
    }

    /// The pixel of a tick.
    pub(super) fn pixel_of_place(&self, place: f64, from: i32, to: i32) -> i32 {
        let share = (place - self.range.start) / (self.range.end - self.range.start);
        from + (share * f64::from(to - from)).round() as i32
    }
}

/// The last share of requests that is shown.
pub(super) const LAST_SHARE: f64 = 0.99995;

/// Where a share of requests is on an axis of nines.
pub(super) fn nine(share: f64) -> f64 {
    -(1.0 - share).max(1e-9).log10()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, name)| name.as_str()).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(names(&Axis::linear("", 1.0)), ["0", "0.25", "0.5", "0.75", "1"]);
        assert_eq!(names(&Axis::linear("", 317_000.0)), ["0", "100k", "200k", "300k"]);
        assert_eq!(names(&Axis::linear("", 0.0)), names(&Axis::linear("", 1.0)));
        assert_eq!(names(&Axis::logarithmic("", 3.0, 40_000.0)), ["10", "100", "1000", "10k"]);
        assert_eq!(names(&Axis::logarithmic("", 3.0, 40.0)), ["5", "10", "20"]);
        let odd = Axis::logarithmic("", f64::NAN, 40.0);
        assert_eq!(names(&odd), names(&Axis::logarithmic("", 1.0, 10.0)));
    }

    #[test]
    fn nothing_is_placed_outside() {
        let axis = Axis::logarithmic("", 1.0, 100.0);
        for value in [0.0, -1.0, 1e9, f64::INFINITY] {
            assert!((10..=90).contains(&axis.pixel(value, 10, 90)), "{value}");
        }
    }
}
