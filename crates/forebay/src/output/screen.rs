//! Pages that are redrawn in place on the whole terminal. The terminal is restored at any end of
//! the process: in order, by a signal, or by a panic of any thread.

use std::io::{IsTerminal, stdout};
use std::ops::ControlFlow;
use std::panic;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use forebay_admin::ApiError;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::{cursor, execute, terminal};
use ratatui::{Frame, Terminal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::exit::VerbResult;

/// Interval at which a page without news is drawn again: it may show the age of something.
const TICK: Duration = Duration::from_secs(1);

/// The exit code after a panic, as that of Rust's own.
const PANICKED: i32 = 101;

/// The content of a screen.
pub(crate) trait Page<T> {
    /// Takes an answer of the daemon.
    fn news(&mut self, news: T);

    /// Takes a key; the page ends if it breaks.
    fn key(&mut self, key: KeyEvent) -> ControlFlow<()>;

    /// Draws everything.
    fn draw(&mut self, frame: &mut Frame<'_>);
}

/// When the daemon is asked.
pub(crate) struct Times {
    /// The time between the first two questions.
    pub(crate) first: Duration,
    /// The time between all others.
    pub(crate) every: Duration,
}

enum Happening<T> {
    News(T),
    Terminal(Event),
    Signal(i32),
    Broken(std::io::Error),
}

/// Whether stdout is a terminal on which a page can be drawn.
pub(crate) fn is_usable() -> bool {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    stdout().is_terminal() && !dumb
}

/// Shows a page until q or Ctrl-C is pressed, or the page ends. `ask` runs on a thread of its own,
/// so that the page answers keys while the daemon does not answer.
///
/// # Errors
/// The terminal cannot be used.
pub(crate) fn show<T: Send + 'static>(
    times: Times,
    ask: impl FnMut() -> T + Send + 'static,
    page: &mut impl Page<T>,
) -> VerbResult {
    let signals =
        Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]).map_err(|error| failed(&error))?;
    let screen = Screen::open()?;
    let happenings = listen(times, ask, signals);
    let signal = run(screen, &happenings, page)?;
    if let Some(signal) = signal {
        // End by the signal itself, so that its sender sees that it took effect.
        emulate_default_handler(signal).map_err(|error| failed(&error))?;
    }
    Ok(())
}

fn failed(error: &std::io::Error) -> ApiError {
    ApiError::failed(format!("the terminal: {error}"))
}

/// Returns the signal that ended the page, if one did. The terminal is restored.
fn run<T>(
    mut screen: Screen,
    happenings: &Receiver<Happening<T>>,
    page: &mut impl Page<T>,
) -> Result<Option<i32>, ApiError> {
    loop {
        screen.0.draw(|frame| page.draw(frame)).map_err(|error| failed(&error))?;
        match happenings.recv_timeout(TICK) {
            Ok(Happening::News(news)) => page.news(news),
            Ok(Happening::Terminal(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                if quits(key) || page.key(key).is_break() {
                    return Ok(None);
                }
            }
            Ok(Happening::Terminal(_)) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Happening::Signal(signal)) => return Ok(Some(signal)),
            Ok(Happening::Broken(error)) => return Err(failed(&error)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}

fn quits(key: KeyEvent) -> bool {
    match key.code {
        KeyCode::Char('q') => true,
        KeyCode::Char('c') => key.modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}

/// Starts a thread for each source. They end with the process, for neither reads nor questions can
/// be interrupted.
fn listen<T: Send + 'static>(
    times: Times,
    mut ask: impl FnMut() -> T + Send + 'static,
    mut signals: Signals,
) -> Receiver<Happening<T>> {
    let (sender, receiver) = channel();
    let news: Sender<Happening<T>> = sender.clone();
    thread::spawn(move || {
        let mut pause = times.first;
        loop {
            let begun = Instant::now();
            if news.send(Happening::News(ask())).is_err() {
                return;
            }
            thread::sleep(pause.saturating_sub(begun.elapsed()));
            pause = times.every;
        }
    });
    let keys = sender.clone();
    thread::spawn(move || {
        loop {
            let happening = event::read().map_or_else(Happening::Broken, Happening::Terminal);
            let ends = matches!(happening, Happening::Broken(_));
            if keys.send(happening).is_err() || ends {
                return;
            }
        }
    });
    thread::spawn(move || {
        for signal in &mut signals {
            if sender.send(Happening::Signal(signal)).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The terminal while a page has it.
struct Screen(Terminal<CrosstermBackend<std::io::Stdout>>);

impl Screen {
    fn open() -> Result<Self, ApiError> {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            restore();
            usual(panic);
            // Exit at once, because other threads would draw again.
            std::process::exit(PANICKED);
        }));
        let terminal = (|| {
            terminal::enable_raw_mode()?;
            execute!(stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
            Terminal::new(CrosstermBackend::new(stdout()))
        })();
        terminal.map(Screen).map_err(|error| {
            restore();
            failed(&error)
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Leaves the terminal as it was. If that fails there is no terminal any more.
fn restore() {
    let _ = terminal::disable_raw_mode();
    let _ = execute!(stdout(), terminal::LeaveAlternateScreen, cursor::Show);
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    struct Panicking;

    impl Page<()> for Panicking {
        fn news(&mut self, (): ()) {}

        fn key(&mut self, _: KeyEvent) -> ControlFlow<()> {
            ControlFlow::Continue(())
        }

        fn draw(&mut self, _: &mut Frame<'_>) {}
    }

    #[test]
    #[ignore = "called by the next test, with a terminal"]
    fn panic_on_a_screen() {
        let times = Times { first: TICK, every: TICK };
        let _ = show(times, || panic!("as told"), &mut Panicking);
    }

    #[test]
    fn a_panic_restores_the_terminal_and_ends_the_process() {
        let program = std::env::current_exe().expect("it runs");
        let test = "output::screen::tests::panic_on_a_screen";
        let line = format!(
            "stty -a; {} --exact {test} --ignored --nocapture; echo code $?; stty -a",
            program.display()
        );
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
        let output = script.env("TERM", "xterm").env("SHELL", "/bin/sh").output();
        let text = String::from_utf8_lossy(&output.expect("script is there").stdout).into_owned();
        let (before, rest) = text.split_once("\x1b[?1049h").expect("the screen was opened");
        let (_, rest) = rest.split_once("\x1b[?1049l").expect("the screen was left");
        let modes = |text: &str| {
            let words = text.split_whitespace().filter(|word| word.ends_with("icanon"));
            words.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(
            (modes(before), modes(rest)),
            (vec!["icanon".to_owned()], vec!["icanon".to_owned()]),
            "{text}"
        );
        assert!(rest.contains("\x1b[?25h") && rest.contains("as told"), "{text}");
        assert!(rest.contains("code 101"), "{text}");
    }
}
