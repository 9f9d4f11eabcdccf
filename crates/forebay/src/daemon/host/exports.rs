//! What clients find on one lane: the running volumes of all caches, and raw devices.

use std::rc::{Rc, Weak};

use forebay_engine::{BlockService, Exports};

use super::lanes::LaneState;

/// The exports of one lane.
pub(super) struct LaneExports(pub(super) Weak<LaneState>);

impl Exports for LaneExports {
    fn names(&self) -> Vec<String> {
        let Some(state) = self.0.upgrade() else { return Vec::new() };
        let mut names: Vec<String> = state.raw.iter().map(|(name, _)| name.clone()).collect();
        for engine in state.engines() {
            names.extend(engine.names());
        }
        names
    }

    fn open(&self, name: &str) -> Option<Rc<dyn BlockService>> {
        let state = self.0.upgrade()?;
        if let Some((_, target)) = state.raw.iter().find(|(known, _)| known == name) {
            let target: Rc<dyn BlockService> = target.clone();
            return Some(target);
        }
        state.engines().iter().find_map(|engine| engine.open(name))
    }
}
