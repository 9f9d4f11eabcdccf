use proptest::prelude::*;

use super::*;
use crate::testing::file;

const SIZE: u16 = 8;

fn size(size: u16) -> QueueSize {
    QueueSize::new(size.into()).expect("a power of two")
}

fn record(file: &std::os::fd::OwnedFd, queues: u16) -> Record {
    let len = record_bytes(queues, size(SIZE));
    let memory = SharedMemory::map(file, 0, len).expect("mapped");
    let place = InflightPlace { len, offset: 0, queues, queue_size: SIZE };
    Record::new(memory, place).expect("valid")
}

fn heads(heads: &[u16]) -> Vec<Head> {
    heads.iter().copied().map(Head).collect()
}

#[test]
fn taken_requests_are_found_in_their_order() {
    let file = file(4096);
    let mut tracker = record(&file, 3).queue(QueueIndex(2), size(SIZE)).expect("there");
    assert_eq!(tracker.recover(100), Ok(vec![]));
    for head in heads(&[5, 1, 7, 3]) {
        tracker.begin(head).expect("there");
    }
    tracker.returns(Head(1)).expect("there");
    tracker.returned(&heads(&[1]), 101).expect("there");
    tracker.begin(Head(1)).expect("there");
    for index in [0, 1] {
        let mut other = record(&file, 3).queue(QueueIndex(index), size(SIZE)).expect("there");
        assert_eq!(other.recover(0), Ok(vec![]), "queues do not mix");
    }
    let mut next = record(&file, 3).queue(QueueIndex(2), size(SIZE)).expect("there");
    assert_eq!(next.recover(101), Ok(heads(&[5, 7, 3, 1])));
    next.begin(Head(0)).expect("there");
    let mut next = record(&file, 3).queue(QueueIndex(2), size(SIZE)).expect("there");
    assert_eq!(next.recover(101), Ok(heads(&[5, 7, 3, 1, 0])), "the order goes on");
    assert_eq!(next.recover(5000), Ok(vec![]), "the guest has reset its queue");
    assert_eq!(next.recover(5000), Ok(vec![]));
}

#[test]
fn impossible_records_are_refused() {
    let file = file(4096);
    let place = |len, queues, queue_size| InflightPlace { len, offset: 0, queues, queue_size };
    for (len, queues, queue_size) in [(4096, 0, 8), (4096, 1, 7), (64, 1, 8), (4096, 100, 8)] {
        let memory = SharedMemory::map(&file, 0, len).expect("mapped");
        assert!(Record::new(memory, place(len, queues, queue_size)).is_none());
    }
    let record = record(&file, 2);
    assert!(record.queue(QueueIndex(2), size(SIZE)).is_none());
    assert!(record.queue(QueueIndex(0), size(2 * SIZE)).is_none());
    let mut tracker = record.queue(QueueIndex(0), size(SIZE)).expect("there");
    let memory = tracker.memory.clone();
    memory.store_u16(AT_VERSION, 7, SeqCst).expect("there");
    assert_eq!(tracker.recover(0), Err(QueueError::Inflight));
    memory.store_u16(AT_VERSION, VERSION, SeqCst).expect("there");
    memory.store_u16(AT_SIZE, 2 * SIZE, SeqCst).expect("there");
    assert_eq!(tracker.recover(0), Err(QueueError::Inflight));
    memory.store_u16(AT_SIZE, SIZE, SeqCst).expect("there");
    memory.store_u16(AT_LAST, SIZE, SeqCst).expect("there");
    assert_eq!(tracker.recover(1), Err(QueueError::Inflight));
}

/// A change of a record by the device, one store or a few at a time.
#[derive(Clone, Copy, Debug)]
enum Step {
    Take,
    Return,
    /// The used index is advanced, ...
    Publish,
    /// ... and the record is told.
    Told,
}

proptest! {
    /// Checks every point at which the daemon can be killed: exactly the requests that were not
    /// returned to the guest are found.
    #[test]
    fn a_kill_at_any_step_loses_and_repeats_nothing(
        used in any::<u16>(),
        steps in prop::collection::vec(
            prop_oneof![
                3 => Just(Step::Take),
                2 => Just(Step::Return),
                2 => Just(Step::Publish),
                2 => Just(Step::Told),
            ],
            0..200,
        ),
    ) {
        let file = file(4096);
        let mut tracker = record(&file, 1).queue(QueueIndex(0), size(SIZE)).expect("there");
        tracker.recover(used).expect("new");
        let mut used = used;
        let mut free: Vec<Head> = (0..SIZE).map(Head).collect();
        let (mut taken, mut returned, mut published): (Vec<Head>, Vec<Head>, Vec<Head>) =
            Default::default();
        for step in steps {
            match step {
                Step::Take => {
                    let Some(head) = free.pop() else { continue };
                    tracker.begin(head).expect("there");
                    taken.push(head);
                }
                Step::Return if published.is_empty() && !taken.is_empty() => {
                    let head = taken.remove(usize::from(used) % taken.len());
                    tracker.returns(head).expect("there");
                    returned.push(head);
                }
                // All requests of a batch are published together.
                Step::Publish if published.is_empty() => {
                    used = used.wrapping_add(returned.len() as u16);
                    published = std::mem::take(&mut returned);
                }
                Step::Told => {
                    tracker.returned(&published, used).expect("there");
                    free.append(&mut published);
                }
                Step::Return | Step::Publish => {}
            }
        }
        let mut next = record(&file, 1).queue(QueueIndex(0), size(SIZE)).expect("there");
        let mut found = next.recover(used).expect("valid");
        let mut expected = [taken, returned].concat();
        found.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(found, expected);
    }
}
