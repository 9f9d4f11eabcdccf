//! Tests of the engine on devices in RAM, in virtual time. They are one program, because each
//! program takes as long to build.

mod admission;
mod bad_sectors;
mod caching;
mod discards;
mod drains;
mod elsewhere;
mod failing;
mod grow;
mod held;
mod huge;
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
mod protected;
mod ranks;
mod sectors;
mod shares;
mod streams;
mod through;
mod trouble;
mod turns;
mod unreadable;
mod why;
mod world;
mod writeback;
