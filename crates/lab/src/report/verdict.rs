//! Verdicts: whether each published row is beaten.

use serde::Serialize;

use super::rows::{Row, Rows};

/// Names among published values that are no caches.
const BARE: [&str; 4] = ["disk", "ssd", "ssd maximum", "ram"];

/// Whether this name among published values is a cache.
pub(super) fn is_cache(name: &str) -> bool {
    !BARE.contains(&name)
}

/// Result of the comparison with a published row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Outcome {
    Beaten,
    NotBeaten,
    /// Nothing was measured here.
    NotRun,
    /// The report gives no number.
    NoFigure,
}

/// The best published cache of a row.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Best {
    pub(super) system: String,
    pub(super) value: f64,
    /// Share of the published SSD.
    pub(super) share: Option<f64>,
}

/// One published row: an experiment and a metric.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Verdict<'a> {
    pub(super) experiment: &'a str,
    pub(super) metric: &'a str,
    /// Whether less is better, as for latencies.
    pub(super) less: bool,
    pub(super) best: Option<Best>,
    /// Our own settings.
    #[serde(serialize_with = "without_detail")]
    pub(super) ours: Option<&'a Row>,
    /// The same with durability `strict`.
    #[serde(serialize_with = "without_detail")]
    pub(super) strict: Option<&'a Row>,
    /// Share as a multiple of the best published share; above 1 is better, for latencies too.
    pub(super) ratio: Option<f64>,
    pub(super) strict_ratio: Option<f64>,
    pub(super) outcome: Outcome,
    pub(super) notes: Vec<&'a str>,
}

fn without_detail<S: serde::Serializer>(row: &Option<&Row>, to: S) -> Result<S::Ok, S::Error> {
    row.map(|row| Row { detail: None, ..row.clone() }).serialize(to)
}

/// Rows of one experiment and metric, in order.
#[derive(Clone, Debug)]
pub(super) struct Group<'a> {
    pub(super) experiment: &'a str,
    pub(super) metric: &'a str,
    pub(super) rows: Vec<&'a Row>,
}

impl Group<'_> {
    pub(super) fn less_is_better(&self) -> bool {
        self.rows.first().is_some_and(|row| row.less_is_better())
    }
}

/// The rows of a report by experiment and metric.
pub(super) fn groups<'a>(input: &'a Rows, report: &str) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for row in input.rows.iter().filter(|row| row.report == report) {
        let known = groups
            .iter_mut()
            .find(|group| group.experiment == row.experiment && group.metric == row.metric);
        match known {
            Some(group) => group.rows.push(row),
            None => groups.push(Group {
                experiment: &row.experiment,
                metric: &row.metric,
                rows: vec![row],
            }),
        }
    }
    groups
}

/// The reports that there are rows of, in order.
pub(super) fn reports(input: &Rows) -> Vec<&str> {
    let mut reports: Vec<&str> = Vec::new();
    for row in &input.rows {
        if !reports.contains(&row.report.as_str()) {
            reports.push(&row.report);
        }
    }
    reports
}

fn best(group: &Group<'_>) -> Option<Best> {
    let published = &group.rows.first()?.published;
    let ssd = published.get("ssd maximum").or_else(|| published.get("ssd"));
    let less = group.less_is_better();
    let caches = published.iter().filter(|(name, _)| is_cache(name));
    let best =
        caches.reduce(|best, other| if (other.1.0 < best.1.0) == less { other } else { best })?;
    let (system, value) = (best.0.clone(), best.1.0);
    Some(Best { system, value, share: ssd.map(|ssd| value / ssd.0) })
}

fn ratio(best: &Best, ours: &Row) -> Option<f64> {
    let (theirs, mine) = (best.share?, ours.share_of_ssd?.0);
    let ratio = if ours.less_is_better() { theirs / mine } else { mine / theirs };
    ratio.is_finite().then_some(ratio)
}

fn verdict<'a>(group: &Group<'a>) -> Option<Verdict<'a>> {
    let own = |row: &&&Row| row.config.starts_with("forebay/") && row.value.is_some();
    let ours = group.rows.iter().find(own).copied();
    let strict = ours.and_then(|ours| {
        let name = format!("{} strict", ours.config);
        group.rows.iter().find(|row| row.config == name).copied()
    });
    let best = best(group);
    if best.is_none() && ours.is_none() {
        // A bare device.
        return None;
    }
    let of = |row| best.as_ref().zip(row).and_then(|(best, row)| ratio(best, row));
    let (ratio, strict_ratio) = (of(ours), of(strict));
    let outcome = match (&best, ours, ratio) {
        (None, ..) => Outcome::NoFigure,
        (_, None, _) | (_, _, None) => Outcome::NotRun,
        (_, _, Some(ratio)) if ratio > 1.0 => Outcome::Beaten,
        _ => Outcome::NotBeaten,
    };
    let noted = ours.into_iter().chain(strict);
    let noted = noted.chain(group.rows.iter().copied().filter(|_| ours.is_none()));
    let mut notes: Vec<&str> = Vec::new();
    for note in noted.filter_map(|row| row.note.as_deref()) {
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    Some(Verdict {
        experiment: group.experiment,
        metric: group.metric,
        less: group.less_is_better(),
        best,
        ours,
        strict,
        ratio,
        strict_ratio,
        outcome,
        notes,
    })
}

/// A verdict on each published row of a report.
pub(super) fn verdicts<'a>(input: &'a Rows, report: &'a str) -> Vec<Verdict<'a>> {
    groups(input, report).iter().filter_map(verdict).collect()
}

/// Counts over some rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    pub(super) beaten: usize,
    /// Beaten rows with `sequential_cutoff` off, and with it on.
    pub(super) without_cutoff: usize,
    pub(super) with_cutoff: usize,
    pub(super) not_beaten: usize,
    pub(super) not_run: usize,
    pub(super) no_figure: usize,
    /// Rows without a figure that are above the modelled SSD.
    pub(super) above_ssd: usize,
    pub(super) goals_met: usize,
    pub(super) goals: usize,
    pub(super) baselines_good: usize,
    pub(super) baselines: usize,
}

impl Counts {
    /// Counts over some reports together.
    pub(super) fn of(input: &Rows, reports: &[&str]) -> Self {
        let mut counts = Counts::default();
        for verdict in reports.iter().flat_map(|report| verdicts(input, report)) {
            match verdict.outcome {
                Outcome::Beaten => {
                    counts.beaten += 1;
                    let cutoff = verdict.ours.and_then(|row| row.sequential_cutoff);
                    counts.without_cutoff += usize::from(cutoff == Some(0));
                    counts.with_cutoff += usize::from(cutoff.is_some_and(|bytes| bytes > 0));
                }
                Outcome::NotBeaten => counts.not_beaten += 1,
                Outcome::NotRun => counts.not_run += 1,
                Outcome::NoFigure => {
                    counts.no_figure += 1;
                    let share = verdict.ours.and_then(|row| row.share_of_ssd);
                    counts.above_ssd += usize::from(share.is_some_and(|share| share.0 > 1.0));
                }
            }
        }
        for row in input.rows.iter().filter(|row| reports.contains(&&*row.report)) {
            counts.goals += usize::from(row.goal.is_some());
            counts.goals_met += usize::from(row.goal.is_some_and(|goal| goal.met));
            counts.baselines += usize::from(row.baseline.is_some());
            counts.baselines_good += usize::from(row.baseline.is_some_and(|b| b.good));
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_is_beaten_for_rates_and_for_latencies() {
        let text = include_str!("example.json");
        let input: Rows = serde_json::from_str(text).expect("is a result");
        let found: Vec<_> = verdicts(&input, "900")
            .iter()
            .map(|verdict| {
                (verdict.experiment.to_owned(), verdict.metric.to_owned(), verdict.outcome)
            })
            .collect();
        let expected = [
            ("fast", "iops", Outcome::Beaten),
            ("fast", "write_mean_ms", Outcome::NotBeaten),
            ("a <b>|`c`", "iops", Outcome::NotBeaten),
            ("only", "iops", Outcome::NotRun),
        ]
        .map(|(experiment, metric, outcome)| (experiment.to_owned(), metric.to_owned(), outcome));
        assert_eq!(found, expected);
        let counts = Counts::of(&input, &["900"]);
        assert_eq!((counts.beaten, counts.not_beaten, counts.not_run), (1, 2, 1));
        assert_eq!((counts.without_cutoff, counts.with_cutoff), (1, 0));
        assert_eq!((counts.goals_met, counts.goals), (1, 2));
        assert_eq!((counts.baselines_good, counts.baselines), (1, 2));
    }
}
