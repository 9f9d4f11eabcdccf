//! The lanes: threads that serve requests, and run jobs for the rest of the daemon.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_admin::ApiError;
use forebay_core::Clock;
use forebay_device::Device;
use forebay_engine::{
    BlockService, EngineLane, Exports, FrontEnd, HandedOver, LaneContext, LaneFrontEnd,
    LimitedVolume,
};
use forebay_lane::{
    Lane, LaneId, LaneLoop, LaneOptions, LaneRemote, LaneThread, MemoryBudget, MonotonicClock,
    join_all,
};
use forebay_ram::RamVolume;
use forebay_store::Helper;
use forebay_threads::{Instant, Mutex, Receiver, sync_channel};

use super::DISMISSAL;
use super::ram::RamTiers;
use super::raw::RawTarget;
use super::shown::Shown;

/// Time for which a device that was closed on a lane may still be in use.
const RELEASE: Duration = Duration::from_secs(10);

/// Time limit for the end of lanes on which nothing runs any more.
const ENDING: Duration = Duration::from_secs(5);

thread_local! {
    static HERE: RefCell<Option<Rc<LaneState>>> = const { RefCell::new(None) };
}

/// State of one lane. Stays on its thread.
pub(super) struct LaneState {
    /// Opens devices on this lane.
    pub(super) context: LaneContext,
    /// Devices that are served without a cache.
    pub(super) raw: Vec<(String, Rc<RawTarget>)>,
    /// The open caches, by the number of their place.
    engines: RefCell<Vec<(u64, Rc<EngineLane>)>>,
    front_ends: RefCell<Vec<Box<dyn LaneFrontEnd>>>,
    ram: Arc<RamTiers>,
    shown: Arc<Shown>,
}

impl LaneState {
    fn new(
        this: &LaneLoop,
        front_ends: &[Arc<dyn FrontEnd>],
        devices: &[(String, Arc<dyn Device>)],
        (ram, shown): (Arc<RamTiers>, Arc<Shown>),
    ) -> io::Result<Rc<Self>> {
        let register = this.clone();
        let context = LaneContext {
            lane: this.lane().clone(),
            queues: Rc::new(this.context()),
            register: Rc::new(move |queue| register.register(queue)),
        };
        let mut raw = Vec::new();
        for (name, device) in devices {
            let queue = context.open(device).map_err(io::Error::other)?;
            raw.push((name.clone(), RawTarget::new(context.lane.clone(), queue, &**device)));
        }
        let state = Rc::new(LaneState {
            context,
            raw,
            engines: RefCell::default(),
            front_ends: RefCell::default(),
            ram,
            shown,
        });
        let exports = Rc::new(LaneExports(Rc::downgrade(&state)));
        for front_end in front_ends {
            let served = front_end.serve(this.lane(), this.ring(), exports.clone());
            state.front_ends.borrow_mut().push(served);
        }
        Ok(state)
    }

    /// Returns a volume as clients see it, whether or not they may find it; `None` if it is not
    /// served.
    pub(super) fn open(&self, name: &str) -> Option<Rc<dyn BlockService>> {
        let volume = self.engines().iter().find_map(|engine| engine.target(name))?;
        let top: Rc<dyn BlockService> = match self.ram.of(name) {
            Some(tier) => RamVolume::new(tier, volume.clone(), self.context.lane.clone()),
            None => volume.clone(),
        };
        Some(LimitedVolume::new(volume, top))
    }

    /// Returns every open cache.
    pub(super) fn engines(&self) -> Vec<Rc<EngineLane>> {
        self.engines.borrow().iter().map(|(_, engine)| engine.clone()).collect()
    }

    /// Returns the cache at a place.
    ///
    /// # Errors
    /// The cache is not open.
    pub(super) fn engine(&self, number: u64) -> Result<Rc<EngineLane>, ApiError> {
        let engines = self.engines.borrow();
        let found = engines.iter().find(|(known, _)| *known == number);
        found
            .map(|(_, engine)| engine.clone())
            .ok_or_else(|| ApiError::failed("the cache is not open any more"))
    }

    /// Adds a cache.
    pub(super) fn add(&self, number: u64, engine: Rc<EngineLane>) {
        self.engines.borrow_mut().push((number, engine));
    }

    /// Removes a cache, and waits until it is unused on this lane.
    pub(super) async fn remove(&self, number: u64) {
        let mut gone = Vec::new();
        self.engines.borrow_mut().retain(|(known, engine)| {
            if *known == number {
                gone.push(Rc::downgrade(engine));
            }
            *known != number
        });
        for engine in gone {
            self.released(|| engine.strong_count() == 0).await;
        }
    }

    /// Dismisses the clients of a volume that has left its cache, and waits until the volume is
    /// unused on this lane.
    pub(super) async fn dismiss(&self, number: u64, id: forebay_core::VolumeId, name: &str) {
        self.front_ends.borrow().iter().for_each(|front_end| front_end.dismiss(name));
        let view = self.engine(number).ok().and_then(|engine| engine.drop_view(id));
        if let Some(view) = view {
            self.released(|| view.strong_count() == 0).await;
        }
    }

    async fn released(&self, free: impl Fn() -> bool) {
        const STEP: Duration = Duration::from_millis(2);
        let lane = &self.context.lane;
        let end = lane.now() + RELEASE;
        while !free() {
            if lane.now() >= end {
                tracing::warn!("a closed cache or volume is still in use; its device stays open");
                return;
            }
            lane.sleep(STEP).await;
        }
    }

    /// Returns the items that each front end hands over.
    async fn hand_over(&self) -> Vec<Vec<HandedOver>> {
        self.engines().iter().for_each(|engine| engine.lift_limits());
        let front_ends = self.front_ends.take();
        join_all(front_ends.into_iter().map(LaneFrontEnd::hand_over)).await
    }

    async fn stop_serving(&self) {
        self.engines().iter().for_each(|engine| engine.lift_limits());
        let front_ends = self.front_ends.take();
        join_all(front_ends.into_iter().map(LaneFrontEnd::drain)).await;
    }
}

/// Exports of one lane: the running volumes of all caches, and raw devices.
struct LaneExports(Weak<LaneState>);

impl Exports for LaneExports {
    fn names(&self) -> Vec<String> {
        let Some(state) = self.0.upgrade() else { return Vec::new() };
        let mut names: Vec<String> = state.raw.iter().map(|(name, _)| name.clone()).collect();
        for engine in state.engines() {
            names.extend(engine.names().into_iter().filter(|name| state.shown.has(name)));
        }
        names
    }

    fn open(&self, name: &str) -> Option<Rc<dyn BlockService>> {
        let state = self.0.upgrade()?;
        if let Some((_, target)) = state.raw.iter().find(|(known, _)| known == name) {
            let target: Rc<dyn BlockService> = target.clone();
            return Some(target);
        }
        if state.shown.has(name) { state.open(name) } else { None }
    }
}

/// Drops the lane's state when the lane ends.
struct Resident;

impl Drop for Resident {
    fn drop(&mut self) {
        let _ = HERE.try_with(|here| here.take());
    }
}

/// The lanes of a daemon. The first one runs the background work of every cache.
pub(super) struct Lanes {
    remotes: Vec<LaneRemote>,
    threads: Mutex<Vec<LaneThread>>,
    memory: Arc<MemoryBudget>,
    clock: Arc<dyn Clock>,
}

impl Lanes {
    /// Starts `count` lanes that serve clients of `front_ends`.
    ///
    /// # Errors
    /// The system has no threads, rings or descriptors left.
    pub(super) fn start(
        count: u32,
        front_ends: &[Arc<dyn FrontEnd>],
        devices: &[(String, Arc<dyn Device>)],
        (ram, shown): (&Arc<RamTiers>, &Arc<Shown>),
        memory: &Arc<MemoryBudget>,
    ) -> io::Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(MonotonicClock::new());
        let wide_ring = front_ends.iter().any(|front_end| front_end.needs_wide_ring());
        let options = LaneOptions { wide_ring, ..LaneOptions::default() };
        let mut threads = Vec::new();
        for number in 0..u16::try_from(count.max(1)).unwrap_or(u16::MAX) {
            let (front_ends, devices) = (front_ends.to_vec(), devices.to_vec());
            let own = (ram.clone(), shown.clone());
            let failed = Arc::new(Mutex::new(None));
            let told = failed.clone();
            let name = format!("lane-{number}");
            let thread =
                LaneThread::spawn(&name, LaneId(number), clock.clone(), options, move |this| {
                    match LaneState::new(this, &front_ends, &devices, own) {
                        Ok(state) => HERE.with(|here| drop(here.replace(Some(state)))),
                        Err(error) => {
                            *told.lock() = Some(error);
                        }
                    }
                    Resident
                })?;
            threads.push(thread);
            if let Some(error) = failed.lock().take() {
                return Err(error);
            }
        }
        let remotes = threads.iter().map(|thread| thread.remote().clone()).collect();
        Ok(Lanes { remotes, threads: Mutex::new(threads), memory: memory.clone(), clock })
    }

    /// Returns the memory budget that the lanes share.
    pub(super) fn memory(&self) -> &Arc<MemoryBudget> {
        &self.memory
    }

    /// Returns the lanes' clock.
    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Returns the number of lanes.
    pub(super) fn count(&self) -> u32 {
        self.remotes.len() as u32
    }

    /// Returns the numbers of all lanes but the first.
    pub(super) fn others(&self) -> std::ops::Range<usize> {
        1..self.remotes.len()
    }

    /// Returns the numbers of all lanes.
    pub(super) fn all(&self) -> std::ops::Range<usize> {
        0..self.remotes.len()
    }

    /// Returns all lanes but the first, to help it recover a cache.
    pub(super) fn helpers(&self) -> Vec<Helper> {
        let open = |_: &Rc<Lane>, device: &Arc<dyn Device>| {
            // If this fails, joining the cache reports the reason.
            HERE.with(|here| here.borrow().clone())?.context.open(device).ok()
        };
        self.remotes.iter().skip(1).map(|remote| Helper::new(remote.clone(), open)).collect()
    }

    /// Starts `job` on a lane; its result arrives through the channel. If the job panics or its
    /// lane ends, the channel closes without a result.
    pub(super) fn begin<T, F>(
        &self,
        lane: usize,
        job: impl FnOnce(Rc<LaneState>) -> F + Send + 'static,
    ) -> Receiver<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (tell, hear) = sync_channel(1);
        if let Some(remote) = self.remotes.get(lane) {
            remote.run(move |lane| {
                let Some(state) = HERE.with(|here| here.borrow().clone()) else { return };
                lane.spawn(async move {
                    let result = job(state).await;
                    let _ = tell.send(result);
                });
            });
        }
        hear
    }

    /// Runs `job` on a lane, and waits for its end.
    ///
    /// # Errors
    /// The job panicked, or the lane has ended.
    pub(super) fn run<T, F>(
        &self,
        lane: usize,
        job: impl FnOnce(Rc<LaneState>) -> F + Send + 'static,
    ) -> Result<T, ApiError>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        self.begin(lane, job).recv().map_err(|_| unfinished())
    }

    /// Waits until every lane has run a job.
    ///
    /// # Errors
    /// A lane has not within `patience`.
    pub(super) fn pulse(&self, patience: Duration) -> Result<(), ApiError> {
        let pulses: Vec<Receiver<()>> =
            self.all().map(|lane| self.begin(lane, |_| std::future::ready(()))).collect();
        let deadline = Instant::now() + patience;
        for (lane, pulse) in pulses.into_iter().enumerate() {
            let left = deadline.saturating_duration_since(Instant::now());
            pulse.recv_timeout(left).map_err(|_| {
                let silent = format!("lane {lane} has not answered for {patience:?}");
                ApiError::failed(silent)
            })?;
        }
        Ok(())
    }

    /// Stops accepting clients and dismisses the present ones, within a bounded time.
    pub(super) fn stop_serving(&self) {
        let stopping: Vec<Receiver<()>> = self
            .all()
            .map(|lane| self.begin(lane, |state| async move { state.stop_serving().await }))
            .collect();
        // One limit for all lanes, so that a stop is bounded however many of them do not answer.
        let deadline = Instant::now() + DISMISSAL * 2;
        for stopped in stopping {
            let _ = stopped.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        }
    }

    /// Stops serving, but keeps the clients connected. [`Leaving::wait`] waits for the end.
    pub(super) fn hand_over(&self) -> Leaving {
        let lanes = self.all();
        let begin = |lane| (lane, self.begin(lane, |state| async move { state.hand_over().await }));
        Leaving { late: lanes.map(begin).collect(), items: Vec::new() }
    }

    /// Ends the lanes. Waits for them only if they are `idle`, and not for long, because an
    /// operation on a lost device may never end.
    pub(super) fn end(&self, idle: bool) {
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in &threads {
            thread.stop();
        }
        let end = Instant::now() + if idle { ENDING } else { Duration::ZERO };
        for thread in threads {
            while !thread.is_finished() && Instant::now() < end {
                forebay_threads::sleep(Duration::from_millis(1));
            }
            if !thread.is_finished() {
                if idle {
                    let lane = thread.id().0;
                    tracing::error!(lane, "it is left behind: a device does not answer");
                }
                std::mem::forget(thread);
            } else if let Err(error) = thread.join() {
                tracing::error!(%error, "a lane ended badly");
            }
        }
    }
}

/// The parts that the lanes hand over.
pub(super) struct Leaving {
    /// The lanes that have not handed over yet.
    late: Vec<(usize, Receiver<Vec<Vec<HandedOver>>>)>,
    /// The parts that each front end hands over, in the order of front ends.
    items: Vec<Vec<HandedOver>>,
}

impl Leaving {
    /// Waits until the lanes have handed over, for at most `patience` in total.
    pub(super) fn wait(&mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        for (lane, left) in std::mem::take(&mut self.late) {
            match left.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(more) => {
                    let len = self.items.len().max(more.len());
                    self.items.resize_with(len, Vec::new);
                    for (own, more) in self.items.iter_mut().zip(more) {
                        own.extend(more);
                    }
                }
                Err(_) => self.late.push((lane, left)),
            }
        }
    }

    /// Returns the items that each front end hands over, and the lanes that have handed over
    /// nothing, whose clients are disconnected.
    pub(super) fn end(mut self, front_ends: usize) -> (Vec<Vec<HandedOver>>, Vec<usize>) {
        self.items.resize_with(front_ends, Vec::new);
        (self.items, self.late.into_iter().map(|(lane, _)| lane).collect())
    }
}

/// Returns the error for a job that did not finish.
pub(super) fn unfinished() -> ApiError {
    ApiError::failed("the data path did not complete the operation; see the log")
}

/// A flag that the daemon raises and lanes poll.
#[derive(Clone, Default)]
pub(super) struct Flag(Arc<AtomicBool>);

impl Flag {
    /// Raises the flag.
    pub(super) fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether the flag is raised.
    pub(super) fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::mpsc::channel;

    use forebay_device::ring::Ring;

    use super::*;

    /// A front end that hands over one client on each lane, on the second lane after a delay.
    struct Late(Duration);

    impl FrontEnd for Late {
        fn serve(
            &self,
            lane: &Rc<Lane>,
            _: &Rc<Ring>,
            _: Rc<dyn Exports>,
        ) -> Box<dyn LaneFrontEnd> {
            let late = if lane.id() == LaneId(1) { self.0 } else { Duration::ZERO };
            Box::new(LateLane(lane.clone(), late))
        }

        fn release(&self) {}
    }

    struct LateLane(Rc<Lane>, Duration);

    impl LaneFrontEnd for LateLane {
        fn dismiss(&self, _: &str) {}

        fn drain(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()>>> {
            Box::pin(std::future::ready(()))
        }

        fn hand_over(self: Box<Self>) -> Pin<Box<dyn Future<Output = Vec<HandedOver>>>> {
            Box::pin(async move {
                self.0.sleep(self.1).await;
                vec![HandedOver::default()]
            })
        }
    }

    #[test]
    fn clients_of_a_lane_that_is_late_are_handed_over_or_missed() {
        let memory = Arc::new(MemoryBudget::new(1 << 30));
        for (late, silent) in
            [(Duration::from_millis(300), vec![]), (Duration::from_secs(600), vec![1])]
        {
            let front_end: Arc<dyn FrontEnd> = Arc::new(Late(late));
            let own = (&Arc::default(), &Arc::default());
            let lanes = Lanes::start(2, &[front_end], &[], own, &memory).expect("threads");
            let mut leaving = lanes.hand_over();
            let step = Duration::from_millis(10);
            while leaving.late.len() > silent.len() {
                leaving.wait(step);
            }
            leaving.wait(step);
            let clients = 2 - silent.len();
            let (items, missed) = leaving.end(1);
            assert_eq!((items.len(), items[0].len(), missed), (1, clients, silent));
            lanes.end(true);
        }
    }

    #[test]
    fn a_lane_that_does_not_end_is_left_behind() {
        let memory = Arc::new(MemoryBudget::new(1 << 30));
        let lanes = Lanes::start(2, &[], &[], (&Arc::default(), &Arc::default()), &memory)
            .expect("threads");
        let (release, wait) = channel::<()>();
        let (begun, begins) = channel();
        lanes.begin(1, move |_| async move {
            let _ = begun.send(());
            // Stands for closing a ring with an operation of a hung disk.
            let _ = wait.recv();
        });
        begins.recv().expect("it begins");
        lanes.end(true);
        assert!(lanes.threads.lock().is_empty());
        drop(release);
    }
}
