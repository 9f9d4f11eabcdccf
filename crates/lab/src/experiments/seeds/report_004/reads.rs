//! Reads, which the report lacks, on the same stack: of 4 and of 64 KiB, some of them with writes.
//!
//! The tier begins with the first bytes of the range, as many as it has room for. In the range that
//! fits these are all.

use crate::error::LabResult;
use crate::virtual_time::access::{Shape, Workload};
use crate::virtual_time::clients::{Span, run};
use crate::virtual_time::cpu::Cpu;
use crate::virtual_time::world::World;

use super::super::measure::{Context, Job, Measurement};
use super::super::published::Config;
use super::{Cell, DEPTHS, RAM_BYTES, ram};

const SIZES: [u64; 2] = [4 << 10, 64 << 10];
const READS: [u32; 2] = [70, 100];
/// With writes, their write-downs have begun before it.
const SECONDS: f64 = 0.5;
/// Bytes of the requests that fill the tier.
const FILL: u64 = 1 << 20;

pub(super) fn cells() -> Vec<Cell> {
    let mut all = Vec::new();
    for reads in READS {
        for whole in [true, false] {
            for depth in DEPTHS {
                for random in [true, false] {
                    all.extend(SIZES.map(|size| Cell { whole, random, size, depth, reads }));
                }
            }
        }
    }
    all
}

/// Fills the tier with the beginning of the cell's range.
fn fill(world: &mut World, cell: &Cell) -> LabResult<()> {
    let span = cell.workload().span.min(RAM_BYTES) / FILL * FILL;
    let shape = Shape::Sequential;
    let load = Workload { shape, start: 0, span, len: FILL, writes: 0, depth: 32 };
    run(world, Cpu::none(), load, 0, Span::requests(span / FILL)).map(drop)
}

fn measure(context: &Context, config: &Config, cell: &Cell) -> LabResult<Measurement> {
    let mut world = ram::world(context, config)?;
    fill(&mut world, cell)?;
    let warm_up = if cell.reads < 100 { ram::WARM_UP } else { 0.0 };
    let span = Span { warm_up, ..Span::seconds(SECONDS) };
    let found = context.volume(&mut world, &cell.name(), 0, cell.workload(), span)?;
    Ok(Measurement::of_volume(config, cell.name(), vec![found]))
}

/// The cells of one configuration.
pub(super) fn jobs(config: &Config) -> Vec<Job> {
    let job = |(number, cells): (usize, &[Cell])| {
        let (cells, config) = (cells.to_vec(), config.clone());
        let name = format!("{}, reads {number}", config.name);
        Job::new("004", name, 10.0, move |context| {
            cells.iter().map(|cell| measure(context, &config, cell)).collect()
        })
    };
    cells().chunks(8).enumerate().map(job).collect()
}
