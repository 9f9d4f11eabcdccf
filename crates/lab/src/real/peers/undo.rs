//! Tear-down: every step of a set-up adds its reversal, and all reversals run in reverse order
//! whatever happens.

use crate::error::LabResult;

type Step = Box<dyn FnMut() -> LabResult<()>>;

/// Reversals of steps. Dropping it runs those that did not run yet.
#[derive(Default)]
pub(crate) struct Undo {
    steps: Vec<(String, Step)>,
}

impl Undo {
    /// Notes how a step is taken back; `what` is for the message if that fails.
    pub(crate) fn push(
        &mut self,
        what: impl Into<String>,
        step: impl FnMut() -> LabResult<()> + 'static,
    ) {
        self.steps.push((what.into(), Box::new(step)));
    }

    /// Runs all reversals, that of the last step first. A failure does not stop the others; the
    /// failures are returned in words.
    pub(crate) fn run(&mut self) -> Vec<String> {
        let mut failed = Vec::new();
        while let Some((what, mut step)) = self.steps.pop() {
            if let Err(error) = step() {
                failed.push(format!("{what}: {error}"));
            }
        }
        failed
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        for failure in self.run() {
            eprintln!("forebay-lab: not undone: {failure}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::error::other;

    #[test]
    fn a_failed_reversal_does_not_stop_those_of_earlier_steps() {
        let done = Rc::new(RefCell::new(Vec::new()));
        let step = |number: i32| {
            let done = done.clone();
            move || {
                done.borrow_mut().push(number);
                if number == 2 { Err(other("stuck")) } else { Ok(()) }
            }
        };
        let mut undo = Undo::default();
        for number in 1..4 {
            undo.push(format!("step {number}"), step(number));
        }
        assert_eq!(undo.run(), ["step 2: stuck"]);
        assert_eq!(*done.borrow(), [3, 2, 1]);
        assert!(undo.run().is_empty(), "nothing is undone twice");
        undo.push("step 4", step(4));
        drop(undo);
        assert_eq!(*done.borrow(), [3, 2, 1, 4], "dropping undoes as well");
    }
}
