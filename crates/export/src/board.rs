//! Messages to the lanes of a front end.

use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_lane::Notify;
use parking_lot::Mutex;

/// Messages to lanes that have not been taken yet.
pub struct Board<P> {
    lanes: AtomicUsize,
    posts: Mutex<Vec<(usize, P)>>,
    /// Notified when messages were added.
    pub changed: Notify,
}

impl<P> Default for Board<P> {
    fn default() -> Self {
        Board { lanes: AtomicUsize::new(0), posts: Mutex::default(), changed: Notify::default() }
    }
}

impl<P> Board<P> {
    /// Adds a lane; returns the lane's number.
    pub fn join(&self) -> usize {
        self.lanes.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the number of lanes.
    pub fn lanes(&self) -> usize {
        self.lanes.load(Ordering::Relaxed)
    }

    /// Leaves messages, each for the lane with the given number.
    pub fn post(&self, posts: impl IntoIterator<Item = (usize, P)>) {
        self.posts.lock().extend(posts);
        self.changed.notify_all();
    }

    /// Leaves a message for every lane.
    pub fn post_to_all(&self, post: impl Fn() -> P) {
        self.post((0..self.lanes()).map(|lane| (lane, post())));
    }

    /// Takes the next message to a lane.
    pub fn take(&self, lane: usize) -> Option<P> {
        let mut posts = self.posts.lock();
        let index = posts.iter().position(|(to, _)| *to == lane)?;
        Some(posts.remove(index).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lane_takes_its_own_messages_in_order() {
        let board = Board::default();
        assert_eq!((board.join(), board.join()), (0, 1));
        board.post([(1, "a"), (0, "b")]);
        board.post_to_all(|| "c");
        assert_eq!([board.take(1), board.take(1), board.take(1)], [Some("a"), Some("c"), None]);
        assert_eq!([board.take(0), board.take(0), board.take(0)], [Some("b"), Some("c"), None]);
    }
}
