//! Metrics: the content of the reports, as text for Prometheus.
//!
//! - `table`: every metric
//! - [`text`]: the formats
//! - [`listener`]: the TCP address of `--metrics`
//!
//! A scrape reads counters that exist anyway. It counts nothing, and holds a lock no longer than a
//! lane does.

pub(crate) mod listener;
mod table;
#[cfg(test)]
mod tests;
pub(crate) mod text;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};

use forebay_admin::report::{DaemonMemory, DaemonReport, DeviceReport, RamReport};
use forebay_admin::{ApiError, EventKind, VolumeReport, VolumeState};

use super::host_api::Count;
use super::log::LogCounts;
use super::volumes::Volumes;
use super::{log, memory, tcp};
use table as the;
use text::{Format, Metric, MetricsWriter};

/// Approximate bytes of text for the daemon with a cache, and for a volume.
const OF_DAEMON: usize = 32 << 10;
const OF_VOLUME: usize = 24 << 10;

/// Claims an address.
///
/// # Errors
/// [`forebay_admin::ErrorKind::Refused`] if the address is in use, or not one of this machine.
pub(crate) fn claim(address: SocketAddr) -> Result<TcpListener, ApiError> {
    tcp::claim("--metrics", "the metrics, which name volumes and devices", address)
}

/// Returns the metrics of the daemon and of all volumes.
pub(crate) fn scrape(volumes: &Volumes, format: Format) -> String {
    volumes.want_count();
    let (daemon, memory) = (volumes.daemon_report(), memory::report(volumes.memory()));
    let events: Vec<_> = volumes.events().counts().collect();
    let log = log::counts();
    write(format, &daemon, &memory, (&events, &log), &volumes.list(Count::Known))
}

fn write(
    format: Format,
    daemon: &DaemonReport,
    memory: &DaemonMemory,
    (events, log): (&[(EventKind, u64)], &LogCounts),
    volumes: &[VolumeReport],
) -> String {
    let mut out = MetricsWriter::new(format, OF_DAEMON + volumes.len() * OF_VOLUME, &the::BUILD);
    write_daemon(&mut out, daemon, memory);
    out.begin(&the::EVENTS);
    for (kind, count) in events {
        out.number(&[kind.name()], *count);
    }
    for (metric, number) in [(&the::LOG_LEFT_OUT, log.left_out), (&the::LOG_DROPPED, log.dropped)] {
        out.begin(metric);
        out.number(&[], number);
    }
    write_caches(&mut out, volumes);
    write_states(&mut out, volumes);
    let served: Vec<&VolumeReport> =
        volumes.iter().filter(|volume| volume.state.has_counts()).collect();
    write_requests(&mut out, &served);
    write_reasons(&mut out, &served);
    write_blocks(&mut out, &served);
    write_origins(&mut out, &served);
    write_ram(&mut out, &served);
    out.end()
}

fn write_daemon(out: &mut MetricsWriter, daemon: &DaemonReport, memory: &DaemonMemory) {
    out.number(&[&daemon.version], 1);
    let numbers = [
        (&the::READY, u64::from(daemon.ready)),
        (&the::LANES, u64::from(daemon.lanes)),
        (&the::HAND_OVERS, daemon.hand_overs),
        (&the::MEMORY_LIMIT, memory.limit_bytes),
    ];
    for (metric, number) in numbers {
        out.begin(metric);
        out.number(&[], number);
    }
    out.begin(&the::MEMORY_USED);
    for (component, bytes) in memory.used_bytes.parts() {
        out.number(&[&component.to_lowercase().replace(' ', "_")], bytes);
    }
}

/// Writes the caches. Each cache is in the reports of all its volumes.
fn write_caches(out: &mut MetricsWriter, volumes: &[VolumeReport]) {
    let with_cache =
        |volume: &&VolumeReport| volume.state.has_counts() && !volume.cache.path.is_empty();
    let caches: BTreeMap<&str, &VolumeReport> =
        volumes.iter().filter(with_cache).map(|volume| (&*volume.cache.path, volume)).collect();
    let mut each = |metric, number: fn(&VolumeReport) -> u64| {
        out.begin(metric);
        caches.iter().for_each(|(cache, volume)| out.number(&[cache], number(volume)));
    };
    each(&the::CACHE_SIZE, |volume| volume.cache.size);
    each(&the::CACHE_USED, |volume| volume.cache.used);
    each(&the::CACHE_INDEX, |volume| volume.memory.index_bytes);
    each(&the::CACHE_FAILED, |volume| u64::from(volume.errors.cache_write > 0));
    each(&the::CACHE_CHECKSUM_ERRORS, |volume| volume.errors.checksum);
    let devices = caches.iter().map(|(cache, volume)| (*cache, &volume.devices.cache)).collect();
    let metrics = [&the::CACHE_DEVICE_BYTES, &the::CACHE_DEVICE_ERRORS, &the::CACHE_DEVICE_SECONDS];
    write_devices(out, metrics, devices);
}

/// Writes bytes, errors and latencies of devices, each with the label that distinguishes it from
/// the others.
fn write_devices(
    out: &mut MetricsWriter,
    [bytes, errors, seconds]: [&'static Metric; 3],
    devices: Vec<(&str, &DeviceReport)>,
) {
    let all = || devices.iter().flat_map(|(of, device)| device.kinds().map(|kind| (*of, kind)));
    out.begin(bytes);
    for (of, (kind, counts)) in all().filter(|(_, (kind, _))| *kind != "sync") {
        out.number(&[of, kind], counts.bytes);
    }
    out.begin(errors);
    all().for_each(|(of, (kind, counts))| out.number(&[of, kind], counts.errors));
    out.begin(seconds);
    all().for_each(|(of, (kind, counts))| out.latencies(&[of, kind], &counts.latency));
}

/// Writes the metrics that every volume has, served or not.
fn write_states(out: &mut MetricsWriter, volumes: &[VolumeReport]) {
    out.begin(&the::INFO);
    for volume in volumes {
        let (name, cache, origin) = (volume.name.as_str(), &volume.cache.path, &volume.origin.path);
        let (mode, caching) = (volume.mode.to_string(), volume.caching.to_string());
        let (policy, durability) = (volume.policy.to_string(), volume.durability.to_string());
        out.number(&[name, cache, origin, &mode, &caching, &policy, &durability], 1);
    }
    out.begin(&the::STATE);
    for volume in volumes {
        for state in VolumeState::ALL {
            out.number(&[volume.name.as_str(), state.name()], u64::from(volume.state == state));
        }
    }
    out.begin(&the::DISPLACED);
    for volume in volumes.iter().filter(|volume| volume.state.has_counts()) {
        let name = volume.name.as_str();
        out.number(&[name, "origin"], u64::from(volume.origin.displaced.is_some()));
        out.number(&[name, "cache"], u64::from(volume.cache.displaced.is_some()));
    }
    let mut each = |metric, number: &dyn Fn(&VolumeReport) -> Option<f64>| {
        out.begin(metric);
        for volume in volumes {
            if let Some(number) = number(volume) {
                out.fraction(&[volume.name.as_str()], number);
            }
        }
    };
    let served = |volume: &VolumeReport, number: f64| volume.state.has_counts().then_some(number);
    each(&the::SIZE, &|volume| Some(volume.origin.size as f64));
    each(&the::CACHED, &|volume| {
        let bytes = || volume.blocks.cached.saturating_mul(volume.block_size);
        volume.blocks.known.then(|| bytes() as f64)
    });
    each(&the::DIRTY, &|volume| volume.dirty_bytes().map(|bytes| bytes as f64));
    each(&the::LOST, &|volume| {
        let lost: u64 = volume.errors.lost.iter().map(|range| range.len).sum();
        served(volume, lost as f64)
    });
    each(&the::ORIGIN_REFUSES, &|volume| {
        let refused: u64 = volume.errors.refused.iter().map(|range| range.len).sum();
        served(volume, refused as f64)
    });
    each(&the::ORIGIN_WRITES_FAIL, &|volume| {
        served(volume, f64::from(u8::from(volume.errors.origin_write > 0)))
    });
    each(&the::WAITS, &|volume| {
        Some(volume.waiting_for.as_ref().map_or(0.0, |wait| wait.seconds as f64))
    });
    each(&the::WRITEBACK_RATE, &|volume| served(volume, volume.writeback.bytes_per_second));
    each(&the::TIME_TO_CLEAN, &|volume| {
        volume.writeback.seconds_to_clean.filter(|_| volume.state.has_counts())
    });
}

fn write_requests(out: &mut MetricsWriter, volumes: &[&VolumeReport]) {
    out.begin(&the::REQUESTS);
    for volume in volumes {
        for (operation, by) in [("read", volume.served.reads), ("write", volume.served.writes)] {
            for (tier, requests) in [("ram", by.ram), ("cache", by.cache), ("origin", by.origin)] {
                out.number(&[volume.name.as_str(), operation, tier], requests);
            }
        }
    }
    each(out, &the::FLUSHES, volumes, |volume| volume.requests.flushes);
    each(out, &the::DISCARDS, volumes, |volume| volume.requests.discards);
    each(out, &the::FAILED, volumes, |volume| volume.requests.failed);
    each(out, &the::LIMITED, volumes, |volume| volume.requests.limited);
    out.begin(&the::LIMITED_SECONDS);
    for volume in volumes {
        let seconds = volume.requests.limited_ms as f64 / 1e3;
        out.fraction(&[volume.name.as_str()], seconds);
    }
    out.begin(&the::CLIENT_BYTES);
    for volume in volumes {
        out.number(&[volume.name.as_str(), "read"], volume.bytes.user_read);
        out.number(&[volume.name.as_str(), "write"], volume.bytes.user_written);
    }
    out.begin(&the::DURATION);
    for volume in volumes {
        for (operation, latency) in volume.latency.kinds() {
            out.latencies(&[volume.name.as_str(), operation], &latency.counts);
        }
    }
    out.begin(&the::LOOKUPS);
    for volume in volumes {
        let (name, requests) = (volume.name.as_str(), &volume.requests);
        out.number(&[name, "read", "hit"], requests.read_hits);
        out.number(&[name, "read", "partial"], requests.read_partial);
        out.number(&[name, "read", "miss"], requests.read_misses);
        out.number(&[name, "write", "hit"], requests.write_hits);
        out.number(&[name, "write", "miss"], requests.write_misses);
    }
}

fn write_reasons(out: &mut MetricsWriter, volumes: &[&VolumeReport]) {
    let groups = [
        ("miss", &the::MISSES),
        ("bypass", &the::BYPASSES),
        ("refused", &the::REFUSED),
        ("evicted", &the::EVICTED),
        ("invalidated", &the::INVALIDATED),
        ("written_back", &the::WRITTEN_BACK),
        ("wake", &the::WAKES),
    ];
    for (wanted, metric) in groups {
        out.begin(metric);
        for volume in volumes {
            volume.why.each(|group, reason, count| {
                if group == wanted {
                    out.number(&[volume.name.as_str(), reason], count);
                }
            });
        }
    }
}

fn write_blocks(out: &mut MetricsWriter, volumes: &[&VolumeReport]) {
    each(out, &the::FILLED, volumes, |volume| volume.blocks.filled * volume.block_size);
    each(out, &the::REINSERTED, volumes, |volume| volume.blocks.carried_on * volume.block_size);
    let written = |volume: &VolumeReport| volume.blocks.written_back * volume.block_size;
    each(out, &the::WRITEBACK_BYTES, volumes, written);
    each(out, &the::CACHE_WRITTEN, volumes, |volume| volume.bytes.cache_written);
}

fn write_origins(out: &mut MetricsWriter, volumes: &[&VolumeReport]) {
    let devices =
        volumes.iter().map(|volume| (volume.name.as_str(), &volume.devices.origin)).collect();
    let metrics = [&the::ORIGIN_BYTES, &the::ORIGIN_ERRORS, &the::ORIGIN_SECONDS];
    write_devices(out, metrics, devices);
    out.begin(&the::RESTED);
    for volume in volumes {
        if let Some(rest) = volume.rest {
            out.number(&[volume.name.as_str()], rest.rested_seconds);
        }
    }
}

fn write_ram(out: &mut MetricsWriter, volumes: &[&VolumeReport]) {
    let tiers: Vec<(&str, RamReport)> =
        volumes.iter().filter_map(|volume| Some((volume.name.as_str(), volume.ram?))).collect();
    let mut each = |metric, number: fn(&RamReport) -> u64| {
        out.begin(metric);
        tiers.iter().for_each(|(name, ram)| out.number(&[name], number(ram)));
    };
    each(&the::RAM_SIZE, |ram| ram.size);
    each(&the::RAM_USED, |ram| ram.used);
    each(&the::RAM_DEFERRED, |ram| ram.deferred);
    out.begin(&the::RAM_LOOKUPS);
    for (name, ram) in &tiers {
        out.number(&[name, "hit"], ram.hits);
        out.number(&[name, "miss"], ram.misses);
    }
    let mut each = |metric, number: fn(&RamReport) -> u64| {
        out.begin(metric);
        tiers.iter().for_each(|(name, ram)| out.number(&[name], number(ram)));
    };
    each(&the::RAM_EVICTED, |ram| ram.evictions);
    each(&the::RAM_FAILED, |ram| ram.failed_write_downs);
}

fn each(
    out: &mut MetricsWriter,
    metric: &'static Metric,
    volumes: &[&VolumeReport],
    number: impl Fn(&VolumeReport) -> u64,
) {
    out.begin(metric);
    volumes.iter().for_each(|volume| out.number(&[volume.name.as_str()], number(volume)));
}
