//! Texts of an operator: sizes, durations, names, modes, devices, addresses, networks. A parsed
//! value is written and read again, and is the same then.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use crate::memory;
use forebay_admin::VolumeName;
use forebay_core::units::format_size;
use forebay_core::{Durability, Mode, ReplacementKind, parse_size};
use forebay_device::DeviceSpec;
use forebay_format::VolumeRecord;
use forebay_nbd::{ListenAddress, Network};
use forebay_settings::duration::{format_duration, parse_duration};

/// Longest message that a bad text may cause, in bytes, beyond the text itself.
const MESSAGE_MOST: usize = 400;

fn round<T>(text: &str) -> Option<T>
where
    T: FromStr<Err: Display> + Display + PartialEq + Debug,
{
    match text.parse::<T>() {
        Ok(value) => {
            let again = value.to_string().parse::<T>();
            assert_eq!(again.ok().as_ref(), Some(&value), "{text:?} is written as '{value}'");
            Some(value)
        }
        Err(error) => {
            assert!(error.to_string().len() <= MESSAGE_MOST + 10 * text.len().min(200));
            None
        }
    }
}

/// Runs one input.
pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    memory::within((256 << 10) + 16 * data.len(), || {
        if let Ok(bytes) = parse_size(text) {
            assert!(text.starts_with(|c: char| c.is_ascii_digit()));
            let pretty = format_size(bytes);
            assert!(pretty.contains('.') || parse_size(&pretty) == Ok(bytes), "{text}: {pretty}");
        }
        if let Ok(duration) = parse_duration(text) {
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
        if let Some(name) = round::<VolumeName>(text) {
            assert!(VolumeRecord::is_valid_name(name.as_str()), "the format refuses '{name}'");
        }
        round::<Mode>(text);
        round::<Durability>(text);
        round::<ReplacementKind>(text);
        round::<ListenAddress>(text);
        round::<Network>(text);
        if let Some(spec) = round::<DeviceSpec>(text) {
            let is_local = spec.path().is_some();
            assert_eq!(spec.is_volatile(), !is_local && spec.remote().is_none());
            match spec.absolute() {
                Ok(absolute) => {
                    assert_eq!(absolute.to_string().parse().as_ref(), Ok(&absolute), "{text:?}");
                }
                // Of a socket, which then has too long a path.
                Err(error) => assert!(spec.remote().is_some(), "{error}"),
            }
        }
    });
}
