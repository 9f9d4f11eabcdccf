//! The plan of `forebay apply`: which steps lead from the daemon's volumes to the declared ones.
//! Pure.

use std::path::Path;

use forebay_admin::{
    ApiError, Assignments, Declared, ErrorKind, Setting, VolumeName, VolumeReport, VolumeState,
};
use forebay_settings::Scope;
use serde::Serialize;

use forebay_daemon::Definition;
use forebay_daemon::devices::NO_CACHE;

/// A declared volume and its definition.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The declaration in the file.
    pub(super) declared: Declared,
    /// As the daemon would store it.
    pub(super) definition: Definition,
}

/// A setting with another value than declared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct SettingChange {
    /// Its name.
    pub(super) setting: &'static str,
    /// Its value now.
    pub(super) old: String,
    /// Its value as declared.
    pub(super) new: String,
}

/// The kind of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub(super) enum StepAction {
    /// Stop the volume.
    Stop,
    /// Change settings.
    Set {
        /// These, in the order of the file.
        changes: Vec<SettingChange>,
    },
    /// Create and serve the volume.
    Create,
    /// Serve the volume, which is stopped or has failed.
    Start,
    /// Nothing: it is as declared.
    Keep,
    /// Nothing: it is not declared.
    Undeclared,
}

impl StepAction {
    /// Returns its place in the order of steps. Settings come before creations, which may join a
    /// cache only with the policy that it has, and before starts, with which some of them take
    /// effect.
    fn rank(&self) -> u8 {
        match self {
            StepAction::Stop => 0,
            StepAction::Set { .. } => 1,
            StepAction::Create => 2,
            StepAction::Start => 3,
            StepAction::Keep => 4,
            StepAction::Undeclared => 5,
        }
    }

    /// Whether it changes something.
    pub(super) fn acts(&self) -> bool {
        !matches!(self, StepAction::Keep | StepAction::Undeclared)
    }
}

/// One step; a volume may need several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct VolumeStep {
    /// The volume.
    pub(super) volume: VolumeName,
    /// Its kind.
    #[serde(flatten)]
    pub(super) action: StepAction,
}

/// Checks the declared volumes against each other: volumes of one cache share some settings.
///
/// # Errors
/// [`ErrorKind::Invalid`] with the line.
pub(super) fn check_shared(
    file: &Path,
    wanted: &[Wanted],
    same: &dyn Fn(&str, &str) -> bool,
) -> Result<(), ApiError> {
    for (index, one) in wanted.iter().enumerate() {
        for (name, value) in one.declared.request.settings.iter() {
            let shared = Setting::find(name).is_ok_and(|setting| setting.scope == Scope::Cache);
            let mut others = wanted.iter().take(index).filter(|other| {
                let cache = &one.definition.cache;
                shared && cache != NO_CACHE && same(cache, &other.definition.cache)
            });
            let differs = |other: &&Wanted| {
                let mut settings = other.declared.request.settings.iter();
                settings.any(|(other, theirs)| other == name && theirs != value)
            };
            if let Some(other) = others.find(differs) {
                let line = one.declared.line_of(name);
                let message = format!(
                    "{}: line {line}: {name}: volume '{}' on the same cache device has another value, and they share it; give both the same",
                    file.display(),
                    other.declared.name()
                );
                return Err(ApiError::new(ErrorKind::Invalid, message).about(name));
            }
        }
    }
    Ok(())
}

/// Returns the steps from the volumes that exist to the declared ones, in the order in which they
/// are taken. `same` tells whether two names of devices mean the same one.
///
/// # Errors
/// [`ErrorKind::Refused`] with the line: a volume exists with another device, block size or
/// alignment.
pub(super) fn plan(
    file: &Path,
    wanted: &[Wanted],
    present: &[VolumeReport],
    prune: bool,
    same: &dyn Fn(&str, &str) -> bool,
) -> Result<Vec<VolumeStep>, ApiError> {
    let mut steps = Vec::new();
    for one in wanted {
        let volume = one.declared.name().clone();
        let actions = match present.iter().find(|report| report.name == volume) {
            Some(report) => {
                check_fixed(file, one, report, same)?;
                actions(one, report)
            }
            None if one.declared.serve => vec![StepAction::Create],
            None => vec![StepAction::Keep],
        };
        steps.extend(
            actions.into_iter().map(|action| VolumeStep { volume: volume.clone(), action }),
        );
    }
    for report in present {
        if !wanted.iter().any(|one| *one.declared.name() == report.name) {
            let stops = prune && report.state != VolumeState::Stopped;
            let action = if stops { StepAction::Stop } else { StepAction::Undeclared };
            steps.push(VolumeStep { volume: report.name.clone(), action });
        }
    }
    steps.sort_by_key(|step| step.action.rank());
    Ok(steps)
}

/// Returns the steps that an existing volume needs.
fn actions(one: &Wanted, report: &VolumeReport) -> Vec<StepAction> {
    let mut actions = Vec::new();
    if !one.declared.serve && report.state != VolumeState::Stopped {
        actions.push(StepAction::Stop);
    }
    let changes: Vec<SettingChange> = one
        .declared
        .decided()
        .into_iter()
        .map(|setting| SettingChange {
            setting: setting.name,
            old: setting.text(&report.settings),
            new: setting.text(&one.definition.settings),
        })
        .filter(|change| change.old != change.new)
        .collect();
    if !changes.is_empty() {
        actions.push(StepAction::Set { changes });
    }
    if one.declared.serve && matches!(report.state, VolumeState::Stopped | VolumeState::Failed) {
        actions.push(StepAction::Start);
    }
    if actions.is_empty() {
        actions.push(StepAction::Keep);
    }
    actions
}

/// Refuses differences that no command can change on an existing volume.
fn check_fixed(
    file: &Path,
    one: &Wanted,
    report: &VolumeReport,
    same: &dyn Fn(&str, &str) -> bool,
) -> Result<(), ApiError> {
    let (declared, definition) = (&one.declared, &one.definition);
    let refuse =
        |key: &str, has: &dyn std::fmt::Display, wants: &dyn std::fmt::Display, way: &str| {
            let message = format!(
                "{}: line {}: {key}: volume '{}' exists with {has}, not {wants}; {way}",
                file.display(),
                declared.line_of(key),
                report.name
            );
            Err(ApiError::new(ErrorKind::Refused, message).about(key))
        };
    let moved = format!(
        "correct the file, or if it is the same device under another name: 'forebay stop {0}', then 'forebay create {0} --cache CACHE --origin ORIGIN --adopt'",
        report.name
    );
    if !same(&report.cache.path, &definition.cache) {
        return refuse("cache", &report.cache.path, &definition.cache, &moved);
    }
    if !same(&report.origin.path, &definition.origin) {
        return refuse("origin", &report.origin.path, &definition.origin, &moved);
    }
    let remade =
        "correct the file; only a volume that is deleted and created again can have another";
    for (key, has, wants) in [
        ("block_size", report.block_size, definition.block_size),
        ("alignment", report.alignment, definition.alignment),
    ] {
        if declared.has(key) && has != wants {
            return refuse(key, &has, &wants, remade);
        }
    }
    Ok(())
}

/// Returns the changes as assignments.
///
/// # Errors
/// None in practice: the values come from settings.
pub(super) fn assignments(changes: &[SettingChange]) -> Result<Assignments, ApiError> {
    let mut all = Assignments::default();
    for change in changes {
        all.push(change.setting, &change.new)?;
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
