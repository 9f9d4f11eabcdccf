//! Every target on its seeds, and on inputs that follow from them by mutations: the same inputs in
//! every run. libFuzzer, which looks for new ones, is in `scripts/fuzz`.

use std::path::{Path, PathBuf};

use crate::targets::{TARGETS, Target};

/// Mutations for each target.
const INPUTS: usize = 10_000;
/// For targets that read a whole cache device with each input.
const INPUTS_OF_DEVICES: usize = 500;
/// Bytes of an input at most, as in `scripts/fuzz`.
const LONGEST: usize = 16 << 10;
/// An input is mutated so many times before the next seed follows.
const STEPS: usize = 8;

/// The files that `scripts/fuzz` gives to libFuzzer.
fn seeds(target: &Target) -> Vec<Vec<u8>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![here.join("seeds").join(target.name)];
    if ["superblock", "record", "checkpoint", "volume_table"].contains(&target.name) {
        folders.push(here.join("../crates/format/golden"));
    }
    let files = folders.iter().filter_map(|folder| folder.read_dir().ok()).flatten();
    let mut paths: Vec<PathBuf> = files.map(|entry| entry.expect("a file").path()).collect();
    paths.retain(|path| path.is_file());
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a seed")).collect()
}

fn run(target: &Target, inputs: usize) {
    let mut seeds = seeds(target);
    seeds.iter_mut().for_each(|seed| seed.truncate(LONGEST));
    seeds.push(Vec::new());
    for seed in &seeds {
        (target.run)(seed);
    }
    let mut input = vec![0; LONGEST];
    let mut size = 0;
    for number in 0..inputs {
        if number % STEPS == 0 {
            let seed = &seeds[number / STEPS % seeds.len()];
            input[..seed.len()].copy_from_slice(seed);
            size = seed.len();
        }
        size = (target.mutate)(&mut input, size, LONGEST, number as u32);
        (target.run)(&input[..size]);
    }
}

// One test: the bound on allocations is one for the whole process.
#[test]
fn every_target_bears_inputs_beside_its_seeds() {
    for target in &TARGETS {
        let of_devices = ["recover_image", "hostile_image"].contains(&target.name);
        let inputs = if of_devices { INPUTS_OF_DEVICES } else { INPUTS };
        // Printed only if the test fails.
        println!("{}", target.name);
        run(target, inputs);
    }
}
