//! The settings of a volume, declared once.
//!
//! - [`table`]: the table, and [`Settings`] generated from it
//! - [`kind`]: kinds of values, how they are parsed, checked, described and encoded
//! - `rules`: constraints between settings
//! - [`assignments`]: changes of settings
//! - `tags`, `serial`: settings in the volume table and as JSON
//! - [`help`]: the table for people
//! - [`duration`]: `30s`, `500ms`, `1h` as text
#![forbid(unsafe_code)]

pub mod assignments;
pub mod duration;
pub mod error;
pub mod help;
pub mod kind;
mod rules;
mod serial;
pub mod table;
mod tags;
#[cfg(test)]
mod tests;

pub use assignments::{Assignments, successor};
pub use error::SettingError;
pub use kind::SettingKind;
pub use table::{SETTINGS, Scope, Setting, Settings};
