//! The control file of a faulty device: its grammar, and the rule that applies to an operation. The
//! grammar is documented in `docs/testing.md`, "Faulty devices".

use std::ops::Range;
use std::time::Duration;

use forebay_core::parse_size;
use rustix::io::Errno;

use crate::api::DeviceOp;

/// Errors that a rule can name.
const ERRORS: [(&str, Errno); 11] = [
    ("EIO", Errno::IO),
    ("ENODATA", Errno::NODATA),
    ("EILSEQ", Errno::ILSEQ),
    ("ENOLINK", Errno::NOLINK),
    ("ENOSPC", Errno::NOSPC),
    ("ENXIO", Errno::NXIO),
    ("ENODEV", Errno::NODEV),
    ("EROFS", Errno::ROFS),
    ("ETIMEDOUT", Errno::TIMEDOUT),
    ("EINVAL", Errno::INVAL),
    ("EOPNOTSUPP", Errno::OPNOTSUPP),
];

/// Names of operations in the file.
const OPS: [&str; 5] = ["read", "write", "sync", "discard", "zero"];

/// The properties of an operation that rules match.
pub(super) struct Shape {
    /// One of [`OPS`].
    op: &'static str,
    /// `None` for an operation without a range.
    range: Option<Range<u64>>,
}

impl Shape {
    pub(super) fn of(op: &DeviceOp) -> Self {
        let name = match op {
            DeviceOp::WriteZeroes { .. } => "zero",
            _ => op.what(),
        };
        Shape { op: name, range: op.range() }
    }
}

/// The fate of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpFate {
    /// The operation goes to the inner device.
    Pass,
    /// The operation fails.
    Fail(Errno),
    /// The operation waits until the file changes.
    Hang,
    /// This many bytes of the operation are written, and then it fails.
    Tear(u64),
}

#[derive(Debug)]
enum RuleAction {
    Delay(Duration),
    End(OpFate),
}

#[derive(Debug)]
struct FaultRule {
    /// The line as the operator wrote it.
    line: String,
    action: RuleAction,
    /// Operations that the rule matches; empty for all.
    ops: Vec<&'static str>,
    /// Range that the rule matches; `None` for every range.
    range: Option<Range<u64>>,
    /// Number of matching operations that pass before the rule acts.
    after: u64,
    /// Number of times that the rule will still act.
    left: u64,
    /// Whether the rule has acted.
    met: bool,
}

/// The content of a control file.
#[derive(Debug, Default)]
pub(super) struct Rules {
    rules: Vec<FaultRule>,
    /// Whether the device cannot be opened.
    pub(super) gone: bool,
    /// Whether writes are held until they are synced.
    pub(super) volatile: bool,
    /// Whether held writes are dropped.
    pub(super) forget: bool,
}

impl Rules {
    /// Reads the text of a control file.
    ///
    /// # Errors
    /// A sentence with the number of the first invalid line.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut rules = Rules::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            match line {
                "" => {}
                "volatile" => rules.volatile = true,
                "forget" => rules.forget = true,
                "gone" => {
                    rules.gone = true;
                    rules.rules.insert(
                        0,
                        FaultRule::new(line, RuleAction::End(OpFate::Fail(Errno::NXIO))),
                    );
                }
                _ => {
                    let rule = FaultRule::parse(line);
                    rules.rules.push(rule.map_err(|why| format!("line {}: {why}", number + 1))?);
                }
            }
        }
        Ok(rules)
    }

    /// Returns the verdict on an operation, and the delay before it. Calls `told` with each rule
    /// that acts for the first time.
    pub(super) fn judge(
        &mut self,
        shape: &Shape,
        mut told: impl FnMut(&str),
    ) -> (Duration, OpFate) {
        let mut delay = Duration::ZERO;
        for rule in self.rules.iter_mut().filter(|rule| rule.covers(shape)) {
            if rule.after > 0 {
                rule.after -= 1;
                continue;
            }
            if rule.left == 0 {
                continue;
            }
            rule.left -= 1;
            if !std::mem::replace(&mut rule.met, true) {
                told(&rule.line);
            }
            match rule.action {
                RuleAction::Delay(time) => delay += time,
                RuleAction::End(verdict) => return (delay, verdict),
            }
        }
        (delay, OpFate::Pass)
    }
}

impl FaultRule {
    fn new(line: &str, action: RuleAction) -> Self {
        let (line, ops) = (line.to_owned(), Vec::new());
        FaultRule { line, action, ops, range: None, after: 0, left: u64::MAX, met: false }
    }

    fn parse(line: &str) -> Result<Self, String> {
        let mut words = line.split_whitespace().flat_map(|word| word.split(','));
        let verb = words.next().unwrap_or_default();
        let action = match verb {
            "fail" => RuleAction::End(OpFate::Fail(Errno::IO)),
            "hang" => RuleAction::End(OpFate::Hang),
            "delay" => RuleAction::Delay(read_time(words.next().unwrap_or_default())?),
            "tear" => {
                // Accepts 'tear write 512' as well as 'tear 512'.
                let bytes = words.find(|word| *word != "write").unwrap_or_default();
                RuleAction::End(OpFate::Tear(parse_size(bytes).map_err(|error| error.to_string())?))
            }
            _ => return Err(format!("'{verb}' is no fault; see docs/testing.md")),
        };
        let mut rule = FaultRule::new(line, action);
        for word in words {
            rule.refine(word)?;
        }
        if matches!(rule.action, RuleAction::End(OpFate::Tear(_))) {
            if rule.ops.iter().any(|op| *op != "write") {
                return Err("only writes can be torn".to_owned());
            }
            rule.ops = vec!["write"];
        }
        Ok(rule)
    }

    fn refine(&mut self, word: &str) -> Result<(), String> {
        let count = |text: &str| text.parse().map_err(|_| format!("'{word}' has no number"));
        if let Some(op) = OPS.into_iter().find(|op| *op == word) {
            self.ops.push(op);
        } else if let Some((_, errno)) = ERRORS.into_iter().find(|(name, _)| *name == word) {
            let RuleAction::End(OpFate::Fail(error)) = &mut self.action else {
                return Err(format!("'{word}' goes with 'fail' only"));
            };
            *error = errno;
        } else if let Some((from, to)) = word.split_once("..") {
            let size = |text| parse_size(text).map_err(|error| error.to_string());
            self.range = Some(size(from)?..size(to)?);
        } else if let Some(text) = word.strip_prefix("after=") {
            self.after = count(text)?;
        } else if let Some(text) = word.strip_prefix("times=") {
            self.left = count(text)?;
        } else if word == "once" {
            self.left = 1;
        } else if word != "*" {
            return Err(format!("'{word}' is not understood; see docs/testing.md"));
        }
        Ok(())
    }

    fn covers(&self, shape: &Shape) -> bool {
        let overlaps = |range: &Range<u64>| {
            shape.range.as_ref().is_some_and(|own| own.start < range.end && range.start < own.end)
        };
        (self.ops.is_empty() || self.ops.contains(&shape.op))
            && self.range.as_ref().is_none_or(overlaps)
    }
}

fn read_time(text: &str) -> Result<Duration, String> {
    let bad = || format!("'{text}' is no time; write it like 200ms or 3s");
    let (number, scale) = match text.strip_suffix("ms") {
        Some(number) => (number, 1),
        None => (text.strip_suffix('s').ok_or_else(bad)?, 1000),
    };
    let number: u32 = number.parse().map_err(|_| bad())?;
    Ok(Duration::from_millis(u64::from(number) * scale))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::IoBuf;
    use crate::data::IoData;

    const SYNC: Shape = Shape { op: "sync", range: None };

    fn at(op: &'static str, range: Range<u64>) -> Shape {
        Shape { op, range: Some(range) }
    }

    fn rules(text: &str) -> Rules {
        Rules::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn verdict(text: &str, shape: &Shape) -> OpFate {
        rules(text).judge(shape, |_| ()).1
    }

    #[test]
    fn rules_catch_what_they_name() {
        let (read, write) = (at("read", 4096..8192), at("write", 4096..8192));
        let fail = OpFate::Fail(Errno::IO);
        for (text, on_read, on_write, on_sync) in [
            ("", OpFate::Pass, OpFate::Pass, OpFate::Pass),
            ("fail", fail, fail, fail),
            ("fail *", fail, fail, fail),
            ("fail read", fail, OpFate::Pass, OpFate::Pass),
            ("fail read,sync # both", fail, OpFate::Pass, fail),
            (
                "fail write sync ENOSPC",
                OpFate::Pass,
                OpFate::Fail(Errno::NOSPC),
                OpFate::Fail(Errno::NOSPC),
            ),
            ("fail 0..4K", OpFate::Pass, OpFate::Pass, OpFate::Pass),
            ("fail 8K..1M", OpFate::Pass, OpFate::Pass, OpFate::Pass),
            ("fail 0..4097", fail, fail, OpFate::Pass),
            ("fail read 8191..8192", fail, OpFate::Pass, OpFate::Pass),
            ("hang sync\n\n# nothing\n", OpFate::Pass, OpFate::Pass, OpFate::Hang),
            ("tear write 512", OpFate::Pass, OpFate::Tear(512), OpFate::Pass),
            ("tear 1K *", OpFate::Pass, OpFate::Tear(1024), OpFate::Pass),
            (
                "hang write\nfail\ngone",
                OpFate::Fail(Errno::NXIO),
                OpFate::Fail(Errno::NXIO),
                OpFate::Fail(Errno::NXIO),
            ),
        ] {
            assert_eq!(verdict(text, &read), on_read, "{text}");
            assert_eq!(verdict(text, &write), on_write, "{text}");
            assert_eq!(verdict(text, &SYNC), on_sync, "{text}");
        }
    }

    #[test]
    fn rules_count() {
        let read = at("read", 0..512);
        let mut told = Vec::new();
        let mut rules = rules("fail read after=1 times=2 ENODEV\ndelay 5ms\ndelay 1s read once");
        let found: Vec<_> =
            (0..5).map(|_| rules.judge(&read, |line| told.push(line.to_owned()))).collect();
        let (slow, gone) = (Duration::from_millis(1005), OpFate::Fail(Errno::NODEV));
        let fast = Duration::from_millis(5);
        let none = Duration::ZERO;
        assert_eq!(
            found,
            [
                (slow, OpFate::Pass),
                (none, gone),
                (none, gone),
                (fast, OpFate::Pass),
                (fast, OpFate::Pass)
            ]
        );
        assert_eq!(told.len(), 3, "each rule is told of once: {told:?}");
    }

    #[test]
    fn a_malformed_rule_is_reported_with_its_line() {
        for bad in [
            "break",
            "fail reed",
            "delay",
            "delay read",
            "delay 5",
            "delay -1s",
            "tear",
            "tear read",
            "tear 512 read",
            "hang EIO",
            "fail 1..x",
            "fail times=",
            "fail after=-1",
            "gone now",
        ] {
            let error = Rules::parse(&format!("\n{bad}\n")).expect_err(bad);
            assert!(error.starts_with("line 2: "), "{bad}: {error}");
        }
    }

    #[test]
    fn every_operation_has_a_shape() {
        let write = DeviceOp::Write { offset: 512, data: IoData::Owned(IoBuf::zeroed(1024)) };
        assert_eq!(verdict("fail write 1535..1536", &Shape::of(&write)), OpFate::Fail(Errno::IO));
        assert_eq!(verdict("fail write 0..1M", &Shape::of(&DeviceOp::Sync)), OpFate::Pass);
        let zero = DeviceOp::WriteZeroes { offset: 0, len: 512 };
        assert_eq!(verdict("hang zero", &Shape::of(&zero)), OpFate::Hang);
    }
}
