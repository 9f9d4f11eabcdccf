//! Operations of an image in flight.
//!
//! An operation owns its memory until the library has called back, even if its caller no longer
//! exists.
#![allow(unsafe_code, reason = "calls of a C library")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use forebay_device::{IoBuf, IoData};
use parking_lot::Mutex;

use crate::handle::{CallError, ImageHandle};
use crate::library::{Completion, Functions};

/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`: the range stays allocated.
const THICK: c_int = 1;

impl ImageHandle {
    /// Starts to fill a buffer.
    pub(crate) fn read(&self, offset: u64, mut buf: IoBuf) -> Arc<Flight> {
        let (len, place) = (buf.len(), buf.as_mut_ptr().cast::<c_char>());
        let start = |functions: &Functions, completion| {
            // SAFETY: the image is open. The flight owns the buffer until the library has called
            // back, and its bytes do not move.
            unsafe { (functions.rbd_aio_read)(self.image, offset, len, place, completion) }
        };
        self.start("rbd_aio_read", Memory::Buffer(buf), Some(len), start)
    }

    /// Starts to write.
    pub(crate) fn write(&self, offset: u64, data: IoData) -> Arc<Flight> {
        let bytes = match &data {
            IoData::Owned(buf) => Some(&buf[..]),
            IoData::Log(log, range) => log.get(range.clone()),
        };
        let Some(bytes) = bytes else {
            return self.failed("rbd_aio_write", Memory::of(data));
        };
        let (len, place) = (bytes.len(), bytes.as_ptr().cast::<c_char>());
        let start = |functions: &Functions, completion| {
            // SAFETY: as for reads; published bytes of a log buffer do not change.
            unsafe { (functions.rbd_aio_write)(self.image, offset, len, place, completion) }
        };
        self.start("rbd_aio_write", Memory::of(data), None, start)
    }

    /// Starts to write zeroes: with `thick` the range stays allocated.
    pub(crate) fn write_zeroes(&self, offset: u64, len: u64, thick: bool) -> Arc<Flight> {
        let Ok(len) = usize::try_from(len) else {
            return self.failed("rbd_aio_write_zeroes", Memory::None);
        };
        let flags = if thick { THICK } else { 0 };
        let start = |functions: &Functions, completion| {
            // SAFETY: the image is open.
            unsafe {
                (functions.rbd_aio_write_zeroes)(self.image, offset, len, completion, flags, 0)
            }
        };
        self.start("rbd_aio_write_zeroes", Memory::None, None, start)
    }

    /// Starts to make completed writes durable.
    pub(crate) fn flush(&self) -> Arc<Flight> {
        let start = |functions: &Functions, completion| {
            // SAFETY: the image is open.
            unsafe { (functions.rbd_aio_flush)(self.image, completion) }
        };
        self.start("rbd_aio_flush", Memory::None, None, start)
    }

    /// Returns an operation that has already failed because its range is invalid.
    fn failed(&self, call: &'static str, memory: Memory) -> Arc<Flight> {
        let state = FlightState { memory, result: Some(-(libc::EINVAL as isize)), waker: None };
        Arc::new(Flight {
            functions: self.functions(),
            call,
            whole: None,
            state: Mutex::new(state),
        })
    }

    fn start(
        &self,
        call: &'static str,
        memory: Memory,
        whole: Option<usize>,
        start: impl FnOnce(&Functions, Completion) -> c_int,
    ) -> Arc<Flight> {
        let functions = self.functions();
        let state = FlightState { memory, result: None, waker: None };
        let flight = Arc::new(Flight { functions, call, whole, state: Mutex::new(state) });
        let argument = Arc::into_raw(flight.clone()).cast_mut().cast::<c_void>();
        let mut completion = ptr::null_mut();
        // SAFETY: the result is written to a variable. The argument is a share of the flight, which
        // the callback takes.
        let made = unsafe {
            (functions.rbd_aio_create_completion)(argument, completed, &raw mut completion)
        };
        let result = if made < 0 { made } else { start(functions, completion) };
        if result < 0 {
            // SAFETY: the operation was not started, so no callback comes: the share and the
            // completion are still ours.
            unsafe {
                drop(Arc::from_raw(argument.cast_const().cast::<Flight>()));
                if made >= 0 {
                    (functions.rbd_aio_release)(completion);
                }
            }
            flight.end(result as isize);
        }
        flight
    }
}

/// # Safety
/// The argument comes from [`ImageHandle::start`], and this is called once for it.
unsafe extern "C" fn completed(completion: Completion, argument: *mut c_void) {
    // SAFETY: see above.
    let flight = unsafe { Arc::from_raw(argument.cast_const().cast::<Flight>()) };
    // SAFETY: the completion is the one that was made with the argument, and is not used
    // afterwards.
    let result = unsafe {
        let result = (flight.functions.rbd_aio_get_return_value)(completion);
        (flight.functions.rbd_aio_release)(completion);
        result
    };
    flight.end(result);
}

/// The memory of an operation.
enum Memory {
    None,
    Buffer(IoBuf),
    /// Bytes of a log buffer, kept until the end.
    Shared {
        _data: IoData,
    },
}

impl Memory {
    fn of(data: IoData) -> Self {
        match data {
            IoData::Owned(buf) => Memory::Buffer(buf),
            data @ IoData::Log(..) => Memory::Shared { _data: data },
        }
    }
}

struct FlightState {
    memory: Memory,
    result: Option<isize>,
    waker: Option<Waker>,
}

/// An operation in flight.
pub(crate) struct Flight {
    functions: &'static Functions,
    call: &'static str,
    /// The expected result of a complete operation, if the result counts bytes.
    whole: Option<usize>,
    state: Mutex<FlightState>,
}

impl Flight {
    fn end(&self, result: isize) {
        let mut state = self.state.lock();
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes the caller, which must get the result from elsewhere.
    pub(crate) fn wake(&self) {
        let waker = self.state.lock().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns whether the operation has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().result.is_some()
    }

    /// Returns the size of the operation's buffer in bytes while it is in flight.
    pub(crate) fn bytes(&self) -> usize {
        match &self.state.lock().memory {
            Memory::Buffer(buf) => buf.len(),
            Memory::None | Memory::Shared { .. } => 0,
        }
    }

    /// Collects the result with the buffer, once, or stores the waker.
    pub(crate) fn poll(
        &self,
        context: &Context<'_>,
    ) -> Poll<(Result<(), CallError>, Option<IoBuf>)> {
        let mut state = self.state.lock();
        let Some(result) = state.result else {
            match &mut state.waker {
                Some(old) => old.clone_from(context.waker()),
                waker => *waker = Some(context.waker().clone()),
            }
            return Poll::Pending;
        };
        let buf = match std::mem::replace(&mut state.memory, Memory::None) {
            Memory::Buffer(buf) => Some(buf),
            Memory::None | Memory::Shared { .. } => None,
        };
        drop(state);
        let fail = |errno| Err(CallError { call: self.call, errno });
        let result = match self.whole {
            _ if result < 0 => fail(i32::try_from(-result).unwrap_or(libc::EIO)),
            // The image has shrunk.
            Some(whole) if result.cast_unsigned() != whole => fail(libc::EIO),
            _ => Ok(()),
        };
        Poll::Ready((result, buf))
    }
}
