//! `forebay-lab engine --jobs J --depth D`: a closed loop on one lane. Every job keeps D requests
//! submitted, all the time; none takes the quick way.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use forebay_engine::{Completion, CompletionSink, Target};
use serde::Serialize;

use crate::driver::{Sink, stamp};
use crate::engine::worker::{Crew, Work, Worker};
use crate::engine::{Args, Case, Sizes};
use crate::error::LabResult;
use crate::measure::{Rates, Sample, Stopwatch};
use crate::output::{Goal, Table, print_json, rate};
use crate::pairs::{Estimate, median};
use crate::pattern::Step;
use crate::progress::Progress;

#[derive(Serialize)]
struct Row {
    case: &'static str,
    jobs: usize,
    depth: usize,
    engine_per_second: f64,
    memcpy_per_second: f64,
    share: Estimate,
    share_of_cpu: Estimate,
    cpu_us: f64,
    memcpy_cpu_us: f64,
    cpu_goal: Option<Goal>,
}

#[derive(Serialize)]
struct Report {
    pairs: usize,
    sizes: Sizes,
    rows: Vec<Row>,
}

/// One job: its steps, and its requests in flight.
struct Job {
    steps: std::sync::Arc<[Step]>,
    at: usize,
    sink: Rc<JobSink>,
}

#[derive(Default)]
struct JobSink {
    in_flight: Cell<usize>,
    common: Rc<Sink>,
}

impl CompletionSink for JobSink {
    fn complete(&self, completion: Completion) {
        self.in_flight.set(self.in_flight.get() - 1);
        self.common.complete(completion);
    }
}

pub(crate) fn run(
    args: &Args,
    sizes: Sizes,
    time: Duration,
    jobs: usize,
    depth: usize,
    json: bool,
) -> LabResult<()> {
    let (jobs, depth) = (jobs.max(1), depth.max(1));
    let crew = Crew::start(sizes, 1, !args.no_pin)?;
    let mut report = Report { pairs: args.pairs, sizes, rows: Vec::new() };
    let progress = Progress::new((args.cases.len() * args.pairs) as u64, "preparing");
    for &case in &args.cases {
        progress.label(case.name());
        crew.prepare(case)?;
        let (mut engine, mut copies) = (Vec::new(), Vec::new());
        for pair in 0..=args.pairs {
            let order =
                if pair % 2 == 0 { [Work::Engine, Work::Copy] } else { [Work::Copy, Work::Engine] };
            for work in order {
                let rates = match work {
                    Work::Engine => {
                        crew.before_sample(case)?;
                        let job = move |worker: &mut Worker| {
                            closed_loop(worker, case, sizes, jobs, depth, time)
                        };
                        Rates::of(&[crew.on(0, job)??])
                    }
                    Work::Copy => Rates::of(&crew.sample(case, work, time, 1)?),
                };
                if pair > 0 {
                    if work == Work::Engine { engine.push(rates) } else { copies.push(rates) }
                }
            }
            progress.advance(u64::from(pair > 0));
        }
        report.rows.push(row(case, jobs, depth, &engine, &copies));
    }
    drop(progress);
    if json { print_json(&report) } else { print(&report) }
}

fn row(case: Case, jobs: usize, depth: usize, engine: &[Rates], copies: &[Rates]) -> Row {
    let middle = |rates: &[Rates], field: fn(&Rates) -> f64| {
        median(&rates.iter().map(field).collect::<Vec<f64>>())
    };
    let ratio = |field: fn(&Rates) -> f64| {
        Estimate::of_ratios(engine.iter().map(field).zip(copies.iter().map(field)))
    };
    let cpu_us = middle(engine, |rates| rates.cpu_us);
    Row {
        case: case.name(),
        jobs,
        depth,
        engine_per_second: middle(engine, |rates| rates.per_second),
        memcpy_per_second: middle(copies, |rates| rates.per_second),
        share: ratio(|rates| rates.per_second),
        share_of_cpu: ratio(|rates| rates.per_cpu_second),
        cpu_us,
        memcpy_cpu_us: middle(copies, |rates| rates.cpu_us),
        cpu_goal: case.cpu_goal().map(|goal| Goal::at_most(goal, cpu_us)),
    }
}

/// Keeps everything in flight until the time is over, then waits for the rest.
fn closed_loop(
    worker: &mut Worker,
    case: Case,
    sizes: Sizes,
    jobs: usize,
    depth: usize,
    time: Duration,
) -> LabResult<Sample> {
    let common: Rc<Sink> = Rc::default();
    let mut all: Vec<Job> = (0..jobs)
        .map(|job| Job {
            steps: case.steps(sizes, job, jobs),
            at: 0,
            sink: Rc::new(JobSink { in_flight: Cell::new(0), common: common.clone() }),
        })
        .collect();
    let target: Rc<dyn Target> = worker.driver.target.clone();
    let watch = Stopwatch::start();
    let mut last = false;
    loop {
        for job in &mut all {
            last |= job.fill(&*target, depth, case.once());
        }
        worker.driver.local.turn();
        common.check()?;
        if last || watch.wall() >= time {
            break;
        }
    }
    worker.driver.local.run_until("the last requests", || {
        all.iter().all(|job| job.sink.in_flight.get() == 0).then_some(())
    })?;
    common.check()?;
    Ok(watch.sample(common.done.get()))
}

impl Job {
    /// Submits until enough is in flight; `true` if the steps are over and are not to be repeated.
    fn fill(&mut self, target: &dyn Target, depth: usize, once: bool) -> bool {
        let sink: Rc<dyn CompletionSink> = self.sink.clone();
        while self.sink.in_flight.get() < depth {
            let Some(step) = self.steps.get(self.at) else {
                if once || self.steps.is_empty() {
                    return true;
                }
                self.at = 0;
                continue;
            };
            let mut request = self.sink.common.request(*step, self.at as u64);
            if let Some(data) = request.data.as_mut().filter(|_| step.write()) {
                stamp(data);
            }
            self.at += 1;
            self.sink.in_flight.set(self.sink.in_flight.get() + 1);
            target.submit(request, &sink);
        }
        false
    }
}

fn print(report: &Report) -> LabResult<()> {
    let mut table = Table::new(&[
        "CASE",
        "JOBS",
        "DEPTH",
        "ENGINE/s",
        "MEMCPY/s",
        "SHARE (wall)",
        "SHARE (cpu)",
        "CPU us",
        "COPY us",
        "GOAL",
    ]);
    for row in &report.rows {
        table.row([
            row.case.to_owned(),
            row.jobs.to_string(),
            row.depth.to_string(),
            rate(row.engine_per_second),
            rate(row.memcpy_per_second),
            row.share.to_string(),
            row.share_of_cpu.to_string(),
            format!("{:.3}", row.cpu_us),
            format!("{:.3}", row.memcpy_cpu_us),
            row.cpu_goal.map_or_else(|| "-".into(), |goal| goal.show("<=", 1)),
        ]);
    }
    println!("{}", table.render());
    println!("{} pairs; every request is submitted, none takes the quick way", report.pairs);
    Ok(())
}
