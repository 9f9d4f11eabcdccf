//! The events of the daemon itself: its start, its end, and the change of its program.

use std::time::Duration;

use forebay_admin::EventKind;

use super::{Events, NewEvent};

/// Time limit at the end of a program for writing its last events.
const SETTLING: Duration = Duration::from_secs(2);

const VERSION: &str = env!("CARGO_PKG_VERSION");

impl Events {
    /// Records the start of this program. `hand_overs`: number of previous programs in its process.
    pub(crate) fn program_started(&self, hand_overs: u64) {
        use EventKind::{DaemonStarted, DaemonStopped, HandedOver};
        let last = self.last_of(&[DaemonStarted, DaemonStopped, HandedOver]);
        if hand_overs > 0 {
            let version = last.as_ref().and_then(|event| {
                event.fields.get("to").or_else(|| event.fields.get("version"))?.as_str()
            });
            let from = version.unwrap_or("unknown");
            let said =
                format!("the program of the daemon was replaced: version {from} by {VERSION}");
            self.record(NewEvent::new(HandedOver, said).with("from", from).with("to", VERSION));
            return;
        }
        let (after, how) = match last.map(|event| event.kind) {
            None => ("nothing", ""),
            Some(DaemonStopped) => ("stop", " after an orderly stop"),
            Some(_) => ("crash", " after one that was not stopped in order"),
        };
        let said = format!("the daemon has started, version {VERSION}{how}");
        self.record(
            NewEvent::new(DaemonStarted, said).with("version", VERSION).with("after", after),
        );
        // No clients are connected yet, so this wait delays none.
        self.settle(SETTLING);
    }

    /// Records the end of the daemon.
    pub(crate) fn program_stopped(&self, clean: bool) {
        let said = match clean {
            true => "the daemon has stopped in order",
            false => "the daemon has stopped, but not everything in order: see its log",
        };
        self.record(NewEvent::new(EventKind::DaemonStopped, said).with("clean", clean));
        self.program_ends();
    }

    /// Has everything written before the program ends.
    pub(crate) fn program_ends(&self) {
        self.settle(SETTLING);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::query::Query;
    use forebay_testkit::TempDir;

    #[test]
    fn a_start_says_how_the_daemon_before_it_ended() {
        let dir = TempDir::new("events-programs");
        let run = |hand_overs, stops: bool| {
            let events = Events::open(dir.path());
            events.program_started(hand_overs);
            let last = events.list(&Query { limit: 1, ..Query::default() }).remove(0);
            if stops {
                events.program_stopped(true);
            }
            events.program_ends();
            last
        };
        assert_eq!(run(0, true).fields["after"], "nothing");
        assert_eq!(run(0, false).fields["after"], "stop");
        assert_eq!(run(0, false).fields["after"], "crash");
        let handed = run(1, false);
        assert_eq!((handed.kind, &handed.fields["from"]), (EventKind::HandedOver, &VERSION.into()));
        assert_eq!(run(0, false).fields["after"], "crash");
    }
}
