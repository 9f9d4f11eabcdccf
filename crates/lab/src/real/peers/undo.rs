//! What has to be taken back: every step of a set-up leaves here how it is undone, and all of it
//! is undone in reverse order whatever happens.

use crate::error::LabResult;

type Step = Box<dyn FnMut() -> LabResult<()>>;

/// Steps to take back. What was not taken back when this is dropped is taken back then.
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

    /// Takes everything back, the last step first. A step that fails does not keep the others
    /// from being taken back; what failed is returned in words.
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
    fn steps_are_taken_back_in_reverse_order_and_failures_stop_nothing() {
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
