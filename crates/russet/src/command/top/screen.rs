//! The terminal: taken for frames, and given back on every way out.

use std::io::{self, Stdout, Write, stdout};
use std::mem::ManuallyDrop;
use std::panic;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event as Reported};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use tokio::sync::mpsc::Sender;

use super::frame;
use super::model::{Event, Model};
use crate::command::Failure;

/// The terminal while it shows frames; dropping this restores it, and so does a panic, also where that ends the process at once.
pub struct Screen {
    /// Dropping it writes to standard error, and panics, if the terminal is gone. It holds nothing but memory.
    terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
    is_coloured: bool,
}

// === impl Screen ===

impl Screen {
    pub fn open() -> Result<Self, Failure> {
        let failed = |error: io::Error| format!("prepare the terminal: {error}");
        on_panic(restore);
        enable_raw_mode().map_err(failed)?;
        let entered = execute!(stdout(), EnterAlternateScreen, Hide);
        match entered.and_then(|()| Terminal::new(CrosstermBackend::new(stdout()))) {
            Ok(terminal) => Ok(Self {
                terminal: ManuallyDrop::new(terminal),
                is_coloured: is_coloured(std::env::var_os("NO_COLOR")),
            }),
            Err(error) => {
                restore();
                Err(failed(error).into())
            }
        }
    }

    /// Draws a frame; returns the columns and rows that it has.
    pub fn draw(&mut self, model: &Model) -> Result<(u16, u16), Failure> {
        let is_coloured = self.is_coloured;
        let drawn = self.terminal.draw(|it| frame::draw(model, it.buffer_mut(), is_coloured));
        let area = drawn.map_err(|error| format!("draw on the terminal: {error}"))?.area;
        Ok((area.width, area.height))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// <https://no-color.org>: any value but an empty one.
fn is_coloured(no_color: Option<std::ffi::OsString>) -> bool {
    no_color.is_none_or(|value| value.is_empty())
}

/// Gives the terminal back. A terminal that is gone needs nothing.
fn restore() {
    let _ = disable_raw_mode();
    let _ = leave(&mut stdout());
}

fn leave(out: &mut impl Write) -> io::Result<()> {
    execute!(out, LeaveAlternateScreen, Show)
}

/// Does this before a panic is reported, so that the report is not lost with the frame.
fn on_panic(first: impl Fn() + Send + Sync + 'static) {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        first();
        report(info);
    }));
}

/// Sends keys and new sizes from a thread of their own, until the terminal is gone or they are not received any more.
pub fn read_keys(events: Sender<Event>) -> io::Result<()> {
    let read = move || {
        loop {
            let sent = match event::read() {
                Ok(Reported::Key(key)) => events.blocking_send(Event::Key(key)),
                Ok(Reported::Resize(columns, rows)) => events.blocking_send(Event::Size(columns, rows)),
                Ok(_) => Ok(()),
                Err(_) => return,
            };
            if sent.is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("top-keys".to_owned()).spawn(read).map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn the_terminal_is_given_back_before_a_panic_is_reported() {
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        on_panic(move || done.store(true, Ordering::Release));
        let ended = panic::catch_unwind(|| panic!("expected by a test"));
        assert!(ended.is_err() && is_done.load(Ordering::Acquire));
    }

    #[test]
    fn leaving_shows_the_cursor_and_what_was_there_before() {
        let mut written = Vec::new();
        leave(&mut written).unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), "\u{1b}[?1049l\u{1b}[?25h");
    }

    #[test]
    fn no_color_switches_colours_off_unless_it_is_empty() {
        assert!(is_coloured(None) && is_coloured(Some("".into())));
        assert!(!is_coloured(Some("1".into())));
    }
}
