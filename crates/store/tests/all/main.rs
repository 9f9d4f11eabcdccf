//! Tests of the store on devices in RAM. They are one program, because each program takes as long
//! to build.

mod crashes;
mod golden;
mod loading;
mod opening;
mod ranges;
mod room;
mod sweep;
mod world;
