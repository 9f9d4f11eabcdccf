//! `forebay apply`: makes the volumes match a file that declares them.
//!
//! - [`plan`]: which steps that takes
//! - [`file`]: reads the file

mod file;
mod plan;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueHint};
use forebay_admin::{
    ApiError, ErrorKind, StartRequest, StopRequest, VolumeName, VolumeReport, api,
};
use forebay_settings::duration::parse_duration;
use serde::Serialize;

use super::create::inspect_devices;
use super::{operate, progress, set};
use crate::client::DaemonClient;
use crate::exit::VerbResult;
use crate::output::table::{Column, Table};
use crate::output::{json, note, print_text};
use crate::paths;
use forebay_daemon::devices::{DeviceName, is_missing};
use plan::{SettingChange, StepAction, VolumeStep, Wanted};

/// Arguments of `apply`.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// The file [default: /etc/forebay/forebay.toml for root, $XDG_CONFIG_HOME/forebay/forebay.toml
    /// otherwise]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,

    /// Print the plan only
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Stop volumes that the file does not declare; nothing is deleted
    #[arg(long)]
    pub(crate) prune: bool,

    /// Overwrite the content of the cache device of this volume if it has to be created; repeatable
    #[arg(short = 'f', long, value_name = "NAME")]
    pub(crate) force: Vec<VolumeName>,

    /// Adopt volumes that the daemon does not know from their cache devices instead of creating
    /// them
    #[arg(long)]
    pub(crate) adopt: bool,

    /// Time to wait for missing devices of volumes that have to be created or started [default: 0]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) wait: Option<Duration>,

    /// Print the plan and its results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Interval at which missing devices are looked for.
const POLL: Duration = Duration::from_millis(200);

/// A step and its result.
#[derive(Serialize)]
struct StepResult {
    #[serde(flatten)]
    step: VolumeStep,
    /// `planned`, `done`, `failed`, `skipped` because an earlier step of the volume failed or the
    /// daemon does not answer, or `none`.
    result: &'static str,
    error: Option<ApiError>,
}

/// Makes the volumes match the file.
pub(crate) fn run(client: &DaemonClient, args: &ApplyArgs) -> VerbResult {
    let path = paths::config_file(args.config.clone())?;
    let wanted = file::read(&path)?;
    plan::check_shared(&path, &wanted, &same_device)?;
    for name in &args.force {
        if !wanted.iter().any(|one| one.declared.name() == name) {
            let reason = format!("{} declares no volume '{name}'", path.display());
            return Err(ApiError::invalid("--force", reason));
        }
    }
    let steps = plan::plan(&path, &wanted, &present(client)?, args.prune, &same_device)?;
    let mut work = PlanExecution { client, args, wanted: &wanted, until: Instant::now() };
    if !args.json {
        print_text(&work.render(&path, &steps))?;
    }
    work.until += args.wait.unwrap_or_default();
    let taken = if args.dry_run { as_planned(steps) } else { work.take(steps) };
    if args.json {
        json::print(&serde_json::json!({ "dry_run": args.dry_run, "steps": taken }))?;
    }
    conclude(taken)
}

/// Returns the reports of all volumes.
fn present(client: &DaemonClient) -> Result<Vec<VolumeReport>, ApiError> {
    let list = client.get(&api::LIST, &())?;
    let names = list.volumes.into_iter().map(|volume| volume.name);
    names.map(|name| client.get(&api::SHOW, &name)).collect()
}

/// Whether two names mean the same device, which may be missing at the moment.
fn same_device(one: &str, other: &str) -> bool {
    let place = |name: &str| {
        DeviceName::parse("device", name).ok().and_then(|name| name.place("device").ok()).flatten()
    };
    one == other || matches!((place(one), place(other)), (Some(one), Some(other)) if one == other)
}

fn as_planned(steps: Vec<VolumeStep>) -> Vec<StepResult> {
    steps.into_iter().map(|step| StepResult { step, result: "planned", error: None }).collect()
}

/// Reports failed steps, each in a line of its own; the last one is the result, with the exit code
/// of the first.
fn conclude(taken: Vec<StepResult>) -> VerbResult {
    let mut errors: Vec<ApiError> = taken
        .into_iter()
        .filter_map(|taken| {
            let mut error = taken.error?;
            error.message = format!("volume '{}': {}", taken.step.volume, error.message);
            Some(error)
        })
        .collect();
    let Some(kind) = errors.first().map(|error| error.kind) else { return Ok(()) };
    let last = errors.pop();
    for error in &errors {
        note(&format!("forebay: {error}"));
    }
    last.map_or(Ok(()), |error| Err(ApiError { kind, ..error }))
}

/// The execution of a plan.
struct PlanExecution<'a> {
    client: &'a DaemonClient,
    args: &'a ApplyArgs,
    wanted: &'a [Wanted],
    /// End of the wait for missing devices.
    until: Instant,
}

impl PlanExecution<'_> {
    /// Takes the steps. One that fails does not keep other volumes from theirs, unless the daemon
    /// does not answer.
    fn take(&self, steps: Vec<VolumeStep>) -> Vec<StepResult> {
        let mut taken: Vec<StepResult> = Vec::new();
        for step in steps {
            let failed = |earlier: &StepResult| {
                let silent = |error: &ApiError| error.kind == ErrorKind::NoAnswer;
                let same = earlier.step.volume == step.volume;
                earlier.error.as_ref().is_some_and(|error| same || silent(error))
            };
            let (result, error) = if taken.iter().any(failed) {
                ("skipped", None)
            } else if !step.action.acts() {
                ("none", None)
            } else {
                match self.one(&step) {
                    Ok(()) => ("done", None),
                    Err(error) => ("failed", Some(error)),
                }
            };
            taken.push(StepResult { step, result, error });
        }
        taken
    }

    fn one(&self, step: &VolumeStep) -> VerbResult {
        let VolumeStep { volume, action } = step;
        match action {
            StepAction::Stop => {
                operate(self.client, &api::STOP, volume, &StopRequest::default(), "Stopping")
            }
            StepAction::Set { changes } => {
                let settings = plan::assignments(changes)?;
                set::change(self.client, volume, settings)
            }
            StepAction::Create => self.create(self.wanted_of(step)?),
            StepAction::Start => {
                self.wait_for(self.wanted_of(step)?);
                operate(self.client, &api::START, volume, &StartRequest::default(), "Starting")
            }
            StepAction::Keep | StepAction::Undeclared => Ok(()),
        }
    }

    fn wanted_of(&self, step: &VolumeStep) -> Result<&Wanted, ApiError> {
        let mut all = self.wanted.iter();
        all.find(|one| *one.declared.name() == step.volume)
            .ok_or_else(|| ApiError::failed("the step is about a volume that is not declared"))
    }

    fn create(&self, one: &Wanted) -> VerbResult {
        self.wait_for(one);
        let mut request = one.declared.request.clone();
        request.cache = Some(one.definition.cache.clone());
        request.origin.clone_from(&one.definition.origin);
        request.force = self.args.force.contains(&request.name);
        if self.args.adopt {
            request.adopt = true;
            request.settings = forebay_admin::Assignments::default();
            (request.profile, request.block_size, request.alignment) = (None, None, 0);
        }
        let begun = self.client.call(&api::CREATE, &(), &request)?;
        progress::follow(self.client, begun, &format!("Creating {}", request.name))?;
        let report = self.client.get(&api::SHOW, &request.name)?;
        inspect_devices(&report);
        Ok(())
    }

    /// Waits for devices that are not there yet, as while a machine boots.
    fn wait_for(&self, one: &Wanted) {
        let devices = [&one.definition.cache, &one.definition.origin];
        while devices.into_iter().any(|device| is_missing(device)) && Instant::now() < self.until {
            std::thread::sleep(POLL);
        }
    }

    fn render(&self, path: &Path, steps: &[VolumeStep]) -> String {
        if steps.is_empty() {
            return format!("{} declares no volumes, and there are none.\n", path.display());
        }
        let mut table =
            Table::new(&[Column::left("STEP"), Column::left("NAME"), Column::left("DETAILS")]);
        for step in steps {
            let (word, details) = self.words(step);
            table.row([word.to_owned(), step.volume.to_string(), details]);
        }
        table.render()
    }

    fn words(&self, step: &VolumeStep) -> (&'static str, String) {
        let declared = self.wanted.iter().find(|one| *one.declared.name() == step.volume);
        match &step.action {
            StepAction::Create => {
                let devices = declared.map(|one| {
                    format!("cache {}, origin {}", one.definition.cache, one.definition.origin)
                });
                (if self.args.adopt { "adopt" } else { "create" }, devices.unwrap_or_default())
            }
            StepAction::Set { changes } => {
                let change = |change: &SettingChange| {
                    format!("{} {} -> {}", change.setting, change.old, change.new)
                };
                ("set", changes.iter().map(change).collect::<Vec<_>>().join(", "))
            }
            StepAction::Start => ("start", String::new()),
            StepAction::Stop if declared.is_some() => ("stop", "serve = false".to_owned()),
            StepAction::Stop => ("stop", "not declared".to_owned()),
            StepAction::Keep => ("-", "nothing to do".to_owned()),
            StepAction::Undeclared => ("-", "not declared; left alone".to_owned()),
        }
    }
}
