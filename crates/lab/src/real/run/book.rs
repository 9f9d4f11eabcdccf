//! The job files that come with the program, their parameters, and those of the user's.

use crate::error::{LabError, LabResult};

/// Sizes are cut to whole multiples of this, so that quarters of them hold whole blocks.
pub(crate) const UNIT: u64 = 4 << 20;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// 2,000,000 sectors, as in the report on FancyCache.
const SMALL_RANGE: u64 = 2_000_000 * 512;

/// Size and duration in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    /// Bytes of the device; `None`: all of it, or not stated.
    pub(crate) size: Option<u64>,
    /// Seconds of each test, or at most of each.
    pub(crate) seconds: u64,
}

/// Size and duration here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    pub(crate) size: u64,
    pub(crate) seconds: u64,
}

/// One run of a job file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    /// Distinction from the other runs of the same file; empty if there is one only.
    pub(crate) label: String,
    pub(crate) variables: Vec<(&'static str, String)>,
}

/// A report whose jobs are known.
#[derive(Debug)]
struct Known {
    name: &'static str,
    text: &'static str,
    published: Published,
}

const fn known(name: &'static str, text: &'static str, size: u64, seconds: u64) -> Known {
    let size = if size > 0 { Some(size) } else { None };
    Known { name, text, published: Published { size, seconds } }
}

static KNOWN: [Known; 5] = [
    known("mail", include_str!("../../../jobs/mail.fio"), 20 * GIB, 300),
    known("maxio", include_str!("../../../jobs/maxio.fio"), 100 * GIB, 300),
    known("iozone", include_str!("../../../jobs/iozone.fio"), 16 * GIB, 300),
    known("writeboost", include_str!("../../../jobs/writeboost.fio"), 0, 15),
    known("iometer", include_str!("../../../jobs/iometer.fio"), 0, 300),
];

/// A job file.
#[derive(Clone, Debug)]
pub(crate) struct Jobs {
    known: Option<&'static Known>,
    text: String,
}

impl Jobs {
    /// One of ours by its name, or a file.
    /// Errors: `Usage`: there is no such thing, or it does not say that it runs on the device
    /// given.
    pub(crate) fn find(name: &str) -> LabResult<Self> {
        if let Some(known) = KNOWN.iter().find(|known| known.name == name) {
            return Ok(Jobs { known: Some(known), text: known.text.to_owned() });
        }
        if !name.ends_with(".fio") {
            let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
            return Err(LabError::Usage(format!(
                "--jobs: '{name}' is not known; choose {}, or name a FILE.fio",
                names.join(", ")
            )));
        }
        let text = std::fs::read_to_string(name)
            .map_err(|error| LabError::Usage(format!("--jobs: {name}: {error}")))?;
        let jobs = Jobs { known: None, text };
        jobs.check_place(name)?;
        Ok(jobs)
    }

    /// The file.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the size and duration of the report; for a file, a minute on the whole device.
    pub(crate) fn published(&self) -> Published {
        self.known.map_or(Published { size: None, seconds: 60 }, |known| known.published)
    }

    /// The lines that fio takes for options, name and value, without comments.
    fn options(&self) -> impl Iterator<Item = (&str, &str)> {
        let lines = self.text.lines().map(str::trim);
        lines.filter(|line| !line.starts_with(['#', ';', '['])).filter(|line| !line.is_empty()).map(
            |line| {
                let (name, value) = line.split_once('=').unwrap_or((line, ""));
                (name.trim(), value.trim())
            },
        )
    }

    /// Whether any job may write. An option that is not surely a read counts as writing.
    pub(crate) fn writes(&self) -> bool {
        let reads = |value: &str| {
            let kind = value.split(':').next().unwrap_or("");
            matches!(kind, "read" | "randread")
        };
        let elsewhere = self
            .options()
            .any(|(name, _)| name.starts_with("include ") || name.starts_with("exec_"));
        elsewhere
            || self
                .options()
                .any(|(name, value)| matches!(name, "rw" | "readwrite") && !reads(value))
    }

    /// A file has to say where it takes its device from, or it would run on another one.
    fn check_place(&self, name: &str) -> LabResult<()> {
        let mut found = false;
        for (option, value) in self.options() {
            found |= option == "${TARGET}" || value == "${DEVICE}";
            let place = matches!(option, "filename" | "uri" | "directory" | "opendir");
            if place && value != "${DEVICE}" {
                return Err(LabError::Usage(format!(
                    "{name}: '{option}={value}' names another device than --device; write ${{TARGET}} \
                     on a line of its own instead"
                )));
            }
        }
        if found {
            return Ok(());
        }
        Err(LabError::Usage(format!(
            "{name} does not take its device from the command line; write ${{TARGET}} on a line of \
             its own under [global], and ioengine=${{ENGINE}}"
        )))
    }

    /// Refuses variables that are not set: fio replaces them by nothing and loses the option, as
    /// happened to the warm-up of the published scripts.
    /// Errors: `Usage`, which names the variable.
    pub(crate) fn check_variables(&self, given: &[(&'static str, String)]) -> LabResult<()> {
        for (option, value) in self.options() {
            for text in [option, value] {
                for part in text.split("${").skip(1) {
                    let name = part.split('}').next().unwrap_or(part);
                    let ours = given.iter().any(|(known, _)| *known == name);
                    if !ours && std::env::var_os(name).is_none() {
                        let line = if value.is_empty() {
                            option.into()
                        } else {
                            format!("{option}={value}")
                        };
                        return Err(LabError::Usage(format!(
                            "the variable {name} in '{line}' is not set; set it in the environment"
                        )));
                    }
                }
            }
        }
        Ok(())
    }

    /// The runs that make one repetition.
    pub(crate) fn variants(&self, scale: Scale) -> Vec<Variant> {
        let size = scale.size;
        let mut variables =
            vec![("SIZE", size.to_string()), ("RUNTIME", scale.seconds.to_string())];
        let one = |variables| vec![Variant { label: String::new(), variables }];
        match self.known.map_or("", |known| known.name) {
            "mail" => {
                variables.push(("WARM", (size / 10 * 9 / 4096 * 4096).to_string()));
                one(variables)
            }
            "maxio" => {
                variables.push(("QUARTER", (size / 4).to_string()));
                one(variables)
            }
            "iozone" => [1, 4, 8, 16]
                .into_iter()
                // A record has to fit in at least twice, or there is no second one to go to.
                .filter(|record| record * MIB * 2 <= size)
                .map(|record| {
                    let bytes = record * MIB;
                    let mut variables = variables.clone();
                    // fio does not end a pass that is no whole number of records.
                    variables[0].1 = (size / bytes * bytes).to_string();
                    variables.push(("RECORD", bytes.to_string()));
                    variables.push(("TWICE", (2 * bytes).to_string()));
                    variables.push(("HOLE", (16 * bytes).to_string()));
                    Variant { label: format!("{record} MB"), variables }
                })
                .collect(),
            "iometer" => iometer(size, &variables),
            _ => one(variables),
        }
    }
}

/// Two ranges, two depths, twelve sizes of blocks.
fn iometer(size: u64, variables: &[(&'static str, String)]) -> Vec<Variant> {
    let mut ranges = vec![("all", size)];
    if SMALL_RANGE < size {
        ranges.push(("976 MB", SMALL_RANGE));
    }
    let mut all = Vec::new();
    for (name, range) in ranges {
        for depth in [32, 1] {
            for block in (0..12).map(|shift| MIB >> shift) {
                let mut variables = variables.to_vec();
                variables.push(("RANGE", range.to_string()));
                variables.push(("DEPTH", depth.to_string()));
                variables.push(("BLOCK", block.to_string()));
                let block =
                    if block < KIB { format!("{block} B") } else { format!("{} KB", block / KIB) };
                all.push(Variant { label: format!("{name}, depth {depth}, {block}"), variables });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(text: &str) -> Jobs {
        Jobs { known: None, text: text.to_owned() }
    }

    #[test]
    fn every_variable_of_our_files_is_set_by_every_variant() {
        for name in KNOWN.iter().map(|known| known.name) {
            let jobs = Jobs::find(name).expect("ours");
            jobs.check_place(name).expect("takes its device from us");
            assert!(jobs.writes(), "{name}");
            let variants = jobs.variants(Scale { size: 2 * GIB, seconds: 1 });
            assert!(!variants.is_empty(), "{name}");
            for mut variant in variants {
                for common in ["ENGINE", "TARGET", "SEED"] {
                    variant.variables.push((common, "x".to_owned()));
                }
                jobs.check_variables(&variant.variables).expect(name);
            }
        }
    }

    #[test]
    fn the_reports_have_as_many_runs_as_they_should() {
        let count =
            |name, size| Jobs::find(name).expect("ours").variants(Scale { size, seconds: 1 }).len();
        assert_eq!(count("iozone", GIB), 4);
        assert_eq!(count("iozone", 8 * MIB), 2);
        assert_eq!(count("iometer", 40 * GIB), 12 * 2 * 2);
        assert_eq!(count("iometer", 512 * MIB), 12 * 2);
        assert_eq!(count("mail", GIB), 1);
    }

    #[test]
    fn the_typo_of_the_published_scripts_is_found() {
        let script = jobs("[warm-up]\nrw=read\nsize=${hit_that_nobody_sets}%\n");
        let error = script.check_variables(&[("hits", "90".to_owned())]).expect_err("unset");
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("hit_that_nobody_sets"), "{error}");
        script.check_variables(&[("hit_that_nobody_sets", "90".to_owned())]).expect("set");
    }

    #[test]
    fn jobs_that_do_not_surely_read_count_as_writing() {
        for (text, writes) in [
            ("[a]\nrw=read\n", false),
            ("[a]\nrw = randread:8\n[b]\nreadwrite=read\n", false),
            ("[a]\n# rw=write\nbs=4k\n", false),
            ("[a]\nrw=randrw\n", true),
            ("[a]\nrw=read\n[b]\nrw=trim\n", true),
            ("[a]\nrw=${KIND}\n", true),
            ("include other.fio\n[a]\nrw=read\n", true),
            ("[a]\nrw=read\nexec_prerun=x\n", true),
        ] {
            assert_eq!(jobs(text).writes(), writes, "{text}");
        }
    }

    #[test]
    fn files_that_run_elsewhere_are_refused() {
        for (text, good) in [
            ("[global]\n${TARGET}\n[a]\nrw=read\n", true),
            ("[a]\nfilename=${DEVICE}\n", true),
            ("[a]\nrw=read\n", false),
            ("[a]\n${TARGET}\n[b]\nfilename=/dev/sda\n", false),
            ("[a]\n${TARGET}\n[b]\ndirectory=/home\n", false),
            ("[a]\n;${TARGET}\n", false),
        ] {
            let checked = jobs(text).check_place("a.fio");
            assert_eq!(checked.is_ok(), good, "{text}: {checked:?}");
        }
        assert_eq!(Jobs::find("mial").expect_err("a typo").exit_code(), 2);
        assert_eq!(Jobs::find("/nonexistent.fio").expect_err("no file").exit_code(), 2);
    }
}
