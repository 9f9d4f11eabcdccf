//! Throughput of the RAM tier as a share of the bare SSD's: one table and its summary.

use crate::output::Table;
use crate::report::rows::Row;

use super::ram::TO_THE_END;
use super::{Cell, DEPTHS};

/// One configuration's shares, in the order of [`Cell::all`]: in steady state, and to the end.
struct Shares {
    config: String,
    steady: Vec<Option<f64>>,
    /// Empty if not measured.
    to_the_end: Vec<Option<f64>>,
}

fn share(rows: &[Row], cell: &Cell, config: &str) -> Option<f64> {
    let name = cell.name();
    let row = rows.iter().find(|row| row.experiment == name && row.config == config)?;
    row.share_of_ssd.map(|share| share.0)
}

fn shares(rows: &[Row]) -> Vec<Shares> {
    let mut configs: Vec<&str> =
        rows.iter().filter_map(|row| row.config.strip_suffix(TO_THE_END)).collect();
    configs.sort_unstable_by_key(|name| (name.len(), *name));
    configs.dedup();
    let cells = Cell::all();
    let of = |config: &str| cells.iter().map(|cell| share(rows, cell, config)).collect();
    let all = |config: &str| Shares {
        config: config.to_owned(),
        steady: of(config),
        to_the_end: of(&format!("{config}{TO_THE_END}")),
    };
    configs.into_iter().map(all).collect()
}

/// Prints the table, if the rows have such shares.
pub(in crate::experiments::seeds) fn print(rows: &[Row]) {
    let all = shares(rows);
    if all.is_empty() {
        return;
    }
    println!(
        "\nRAM tier: throughput divided by the bare SSD's, in steady state / from the empty tier until all\n\
         is durable on the SSD, so with the last write-down. Each request takes CPU time as everywhere in\n\
         virtual time (--cpu-...), which limits what RAM alone serves; requests to the bare SSD take none."
    );
    table(&all);
    for one in &all {
        println!("{}", one.config);
        sum_up("steady state", &one.steady);
        sum_up("to the end", &one.to_the_end);
    }
}

fn short(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), |share| format!("{share:.3}"))
}

fn table(all: &[Shares]) {
    let cells = Cell::all();
    let mut heading = "PATTERN".to_owned();
    let columns = [true, false].into_iter().flat_map(|whole| DEPTHS.map(|depth| (whole, depth)));
    let columns: Vec<(bool, usize)> = columns.collect();
    for one in all {
        let block = one.config.rsplit(' ').next().unwrap_or_default();
        for (whole, depth) in &columns {
            let range = if *whole { "whole" } else { "976M" };
            heading.push_str(&format!(" | {block} {range} x{depth}"));
        }
    }
    let mut table = Table::new(&heading);
    for first in cells.iter().filter(|cell| cell.whole && cell.depth == DEPTHS[0]) {
        let mut row = vec![first.pattern()];
        for one in all {
            for &(whole, depth) in &columns {
                let wanted = Cell { whole, depth, ..*first }.name();
                let at = cells.iter().position(|cell| cell.name() == wanted);
                let of = |shares: &[Option<f64>]| short(at.and_then(|at| shares[at]));
                let mut shown = of(&one.steady);
                if !one.to_the_end.is_empty() {
                    shown.push_str(&format!(" / {}", of(&one.to_the_end)));
                }
                row.push(shown);
            }
        }
        table.row(row);
    }
    print!("{}", table.render());
}

/// Prints how many cells reach the SSD, the worst cell, and the sequential cells that the report
/// praises.
fn sum_up(what: &str, shares: &[Option<f64>]) {
    let cells = Cell::all();
    let known: Vec<(f64, &Cell)> =
        shares.iter().zip(&cells).filter_map(|(share, cell)| Some(((*share)?, cell))).collect();
    let at_least = |least: f64| known.iter().filter(|(share, _)| *share >= least).count();
    let Some((worst, cell)) = known.iter().min_by(|one, other| one.0.total_cmp(&other.0)) else {
        return;
    };
    println!(
        "  {what}: {} cells, {} at 1.0 or more, {} at 0.99 or more, the smallest {worst:.3} ({})",
        known.len(),
        at_least(1.0),
        at_least(0.99),
        cell.name(),
    );
    let praised = known
        .iter()
        .filter(|(_, cell)| !cell.random && cell.depth == 1 && cell.size <= 8 << 10)
        .map(|(share, cell)| format!("{} {share:.2}", cell.name()));
    println!("    {}", praised.collect::<Vec<_>>().join(", "));
}
