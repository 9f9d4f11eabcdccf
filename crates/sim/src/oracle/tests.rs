use super::*;

fn bytes(value: Value, sector: u64) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    stamp::fill_value(&mut bytes, 7, SectorAddress { volume: 0, sector }, value);
    bytes
}

fn asked(op: Op, id: VersionId) -> Asked {
    Asked { volume: 0, op, first: 0, sectors: 1, survives: Survives::Nothing, id }
}

fn read(oracle: &mut Oracle, value: Value) -> Result<(), Violation> {
    oracle.submit(99, asked(Op::Read, 0));
    oracle.complete(99, Ok(()), Some(&bytes(value, 0)), Excuses::default())
}

#[test]
fn damage_excuses_a_read_even_if_a_later_write_repairs_it() {
    let mut oracle = Oracle::new(7, 8, &[0], vec![vec![Value::Zero; 8]]);
    oracle.submit(99, asked(Op::Read, 0));
    oracle.taint(SectorAddress { volume: 0, sector: 0 });
    oracle.submit(1, Asked { sectors: 8, ..asked(Op::Write, 1) });
    assert!(oracle.complete(1, Ok(()), None, Excuses::default()).is_ok());
    assert!(oracle.complete(99, Err(IoError::Io), None, Excuses::default()).is_ok());
    oracle.submit(98, asked(Op::Read, 0));
    assert!(oracle.complete(98, Err(IoError::Io), None, Excuses::default()).is_err());
}

#[test]
fn data_committed_by_the_clock_may_not_be_lost() {
    for (bound, kept) in [(19, false), (20, true)] {
        let mut oracle = Oracle::new(7, 8, &[0], vec![vec![Value::Zero; 8]]);
        oracle.time = Nanos(10);
        oracle.submit(1, asked(Op::Write, 1));
        oracle.time = Nanos(20);
        assert!(oracle.complete(1, Ok(()), None, Excuses::default()).is_ok());
        oracle.time = Nanos(50);
        oracle.durable_since(0, Nanos(bound));
        oracle.crash(|_| true);
        assert_eq!(read(&mut oracle, Value::Zero).is_err(), kept, "{bound}");
    }
}

#[test]
fn a_write_that_was_flushed_on_another_lane_must_survive() {
    let mut oracle = Oracle::new(7, 8, &[0], vec![vec![Value::Zero; 8]]);
    let id = oracle.next_id(0);
    oracle.submit(1, asked(Op::Write, id));
    oracle.complete(1, Ok(()), None, Excuses::default()).expect("fine");
    oracle.submit(2, Asked { sectors: 0, ..asked(Op::Flush, 0) });
    oracle.complete(2, Ok(()), None, Excuses::default()).expect("fine");
    oracle.crash(|_| true);
    read(&mut oracle, Value::Write(id)).expect("survived");
    assert_eq!(read(&mut oracle, Value::Write(9)).map_err(|v| v.invariant), Err(1));
    assert_eq!(read(&mut oracle, Value::Zero).map_err(|v| v.invariant), Err(1));
}

#[test]
fn a_write_that_a_stop_has_left_behind_need_not_be_durable() {
    let mut oracle = Oracle::new(7, 8, &[0], vec![vec![Value::Zero; 8]]);
    let judge = |oracle: &Oracle, value| {
        oracle.judge_alone(SectorAddress { volume: 0, sector: 0 }, SectorContent::Own(value))
    };
    oracle.submit(1, asked(Op::Write, 1));
    oracle.complete(1, Ok(()), None, Excuses::default()).expect("fine");
    oracle.submit(2, asked(Op::Write, 2));
    oracle.volume_is_durable(0);
    oracle.leave(0);
    oracle.complete(2, Ok(()), None, Excuses::default()).expect("fine");
    for number in [1, 2] {
        judge(&oracle, Value::Write(number)).expect("it may be there");
    }
    assert!(judge(&oracle, Value::Zero).is_err());
    oracle.volume_is_durable(0);
    judge(&oracle, Value::Write(2)).expect("it was promised");
    assert!(judge(&oracle, Value::Write(1)).is_err());
}

#[test]
fn errors_need_a_cause() {
    let mut oracle = Oracle::new(7, 8, &[0], vec![vec![Value::Zero; 16]]);
    let failed = |oracle: &mut Oracle, excuses| {
        oracle.submit(1, asked(Op::Read, 0));
        oracle.complete(1, Err(IoError::Io), None, excuses)
    };
    assert!(failed(&mut oracle, Excuses::default()).is_err());
    assert!(failed(&mut oracle, Excuses { disk_errors: true, ..Excuses::default() }).is_ok());
    oracle.taint(SectorAddress { volume: 0, sector: 9 });
    assert!(failed(&mut oracle, Excuses::default()).is_err());
    oracle.taint(SectorAddress { volume: 0, sector: 7 });
    assert!(failed(&mut oracle, Excuses::default()).is_ok());
    let id = oracle.next_id(0);
    oracle.submit(2, Asked { sectors: 8, ..asked(Op::Write, id) });
    oracle.complete(2, Ok(()), None, Excuses::default()).expect("fine");
    assert!(failed(&mut oracle, Excuses::default()).is_err());
}

#[test]
fn a_request_ends_once() {
    let mut oracle = Oracle::new(7, 8, &[0], vec![vec![Value::Zero; 8]]);
    oracle.submit(1, asked(Op::Flush, 0));
    assert!(oracle.complete(1, Ok(()), None, Excuses::default()).is_ok());
    let again = oracle.complete(1, Ok(()), None, Excuses::default());
    assert_eq!(again.map_err(|v| v.invariant), Err(25));
}
