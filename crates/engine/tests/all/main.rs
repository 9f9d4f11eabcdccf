//! Tests of the engine on devices in RAM, in virtual time. One program, because each takes as long to build.

mod admission;
mod caching;
mod drains;
mod failing;
mod grow;
mod held;
mod lazy;
mod life;
mod limits;
mod little_memory;
mod masks;
mod neighbours;
mod notes;
mod origin;
mod panics;
mod pins;
mod ranks;
mod shares;
mod streams;
mod through;
mod trouble;
mod unreadable;
mod why;
mod world;
mod writeback;
