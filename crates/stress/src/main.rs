//! `forebay-stress`: tests lanes on separate threads; see the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use forebay_store::PlantedBug;
use forebay_stress::{MOST_LANES, names, run};

/// Lanes on threads of their own, a tiny cache, power cuts, failing devices, and a check of
/// everything that is read. Ends with 1 when a guarantee was broken.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Seconds for each configuration.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Seed of the clients' requests. Threads are real: another run with it differs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Lanes, 2 to 8.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=i64::from(MOST_LANES)))]
    lanes: u16,
    /// Configurations, separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(names()))]
    only: Vec<String>,
    /// Switches a known bug on, if these are compiled in: with the feature `planted-bugs`.
    #[arg(long)]
    plant: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let bug = PlantedBug::ALL.iter().find(|bug| args.plant.as_deref() == Some(bug.name()));
    if let (Some(name), None) = (&args.plant, bug) {
        eprintln!("forebay-stress: there is no planted bug '{name}'");
        return ExitCode::from(2);
    }
    let chosen = |name: &&str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    for name in names().into_iter().filter(|name| chosen(name)) {
        match run(name, args.seed, args.lanes, Duration::from_secs(args.seconds), bug.copied()) {
            Ok(tried) => println!("{name}: {tried}"),
            Err(wrong) => {
                let seconds = wrong.after.as_secs_f64();
                println!("{name}: BROKEN after {seconds:.1} s and {}: {}", wrong.tried, wrong.what);
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
