use proptest::prelude::*;

use super::*;
use crate::testing::Guest;

#[test]
fn requests_come_and_go_in_order_over_the_end_of_the_index() {
    for start in [0, u16::MAX - 3] {
        let mut guest = Guest::new(4);
        guest.begin_at(start);
        let mut queue = guest.queue(true);
        for round in 0..20_u16 {
            assert_eq!(queue.available(), Ok(0));
            for head in 0..4 {
                guest.offer(Head(head), true);
            }
            assert_eq!(queue.available(), Ok(4));
            for head in [0, 1, 2, 3] {
                assert_eq!(queue.take(), Ok(Head(head)));
                queue.put(Head(head), u32::from(round)).expect("in memory");
                assert_eq!(guest.collect(), []);
            }
            queue.publish().expect("in memory");
            let expected: Vec<_> = (0..4).map(|head| (head, u32::from(round))).collect();
            assert_eq!(guest.collect(), expected);
        }
        assert_eq!(queue.base(), start.wrapping_add(80));
        assert_eq!(queue.used_index(), start.wrapping_add(80));
    }
}

#[test]
fn impossible_indexes_are_refused() {
    let mut guest = Guest::new(4);
    let mut queue = guest.queue(true);
    for count in [5, 6, 1 << 15, u16::MAX] {
        guest.claim(count);
        assert_eq!(queue.available(), Err(QueueError::Index(count)));
    }
    guest.claim(4);
    assert_eq!(queue.available(), Ok(4));
    guest.offer(Head(4), true);
    assert_eq!(queue.take(), Err(QueueError::Chain(4, ChainError::NoDescriptor(4))));
}

#[test]
fn flags_ask_for_notifications() {
    let mut guest = Guest::new(4);
    let mut queue = guest.queue(false);
    assert!(guest.offer(Head(0), false), "a new queue asks");
    queue.need_no_notification().expect("in memory");
    assert!(!guest.offer(Head(1), false));
    assert_eq!(queue.ask_for_notification(), Ok(true), "both requests are there already");
    for _ in 0..2 {
        let head = queue.take().expect("offered");
        queue.put(head, 0).expect("in memory");
    }
    assert_eq!(queue.ask_for_notification(), Ok(false));
    assert!(guest.offer(Head(2), false));
    assert_eq!(queue.publish(), Ok(true));
    assert_eq!(queue.publish(), Ok(false), "nothing new");
    guest.want_none(true);
    let head = queue.take().expect("offered");
    queue.put(head, 0).expect("in memory");
    assert_eq!(queue.publish(), Ok(false));
}

proptest! {
    /// Checks that a driver that asked for a notification gets one for the next entry.
    #[test]
    fn no_notification_by_index_is_missed(
        start in any::<u16>(),
        steps in prop::collection::vec((0_u16..5, 0_u16..3, any::<bool>()), 1..60),
    ) {
        const SIZE: u16 = 8;
        let mut guest = Guest::new(SIZE);
        guest.begin_at(start);
        let mut queue = guest.queue(true);
        let (mut free, mut busy): (Vec<u16>, Vec<Head>) = ((0..SIZE).collect(), Vec::new());
        for (offers, answers, asks) in steps {
            // The device sleeps if nothing was available when it asked.
            while queue.available().expect("valid") > 0 {
                busy.push(queue.take().expect("offered"));
            }
            prop_assert!(!queue.ask_for_notification().expect("valid"));
            let mut notified = false;
            let mut offered = 0;
            for _ in 0..offers.min(free.len() as u16) {
                notified |= guest.offer(Head(free.pop().expect("counted")), true);
                offered += 1;
            }
            prop_assert_eq!(notified, offered > 0, "the device sleeps on");

            guest.ask(if asks { 0 } else { SIZE });
            let answers = usize::from(answers).min(busy.len());
            for head in busy.drain(..answers) {
                queue.put(head, 1).expect("in memory");
            }
            let told = queue.publish().expect("in memory");
            if asks {
                prop_assert_eq!(told, answers > 0, "the guest sleeps on");
            } else {
                prop_assert!(!told);
            }
            free.extend(guest.collect().into_iter().map(|(head, _)| head));
        }
    }
}
