//! What is shown, and what keys, answers and time make of it. Pure: the time is an argument.

use std::time::{Duration, Instant};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::frame;
use super::panes::{self, Pane};
use super::sample::Sample;

/// Everything that a frame is made of.
#[derive(Debug)]
pub struct Model {
    pub sample: Sample,
    /// When that was received.
    received: Instant,
    now: Instant,
    /// Why the agent did not answer since.
    pub failure: Option<String>,
    /// None until there are two answers of one agent.
    pub rates: Option<Rates>,
    pub pane: Pane,
    /// How far each pane is scrolled.
    scrolled: [Scrolled; Pane::ALL.len()],
    /// In lower case; only rows that contain it are shown.
    pub filter: String,
    pub input: Input,
    denied_only: bool,
    paused: bool,
    pub is_help: bool,
    /// Columns and rows of the terminal.
    size: (u16, u16),
}

/// Where a pane begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scrolled {
    pub rows: usize,
    pub columns: usize,
}

/// What keys are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    Commands,
    /// Letters of the filter.
    Filter,
}

/// Between the last two answers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// New ones in a second.
    pub flows: f64,
    /// In a second.
    pub denied_packets: f64,
}

/// What happens.
#[derive(Debug)]
pub enum Event {
    Key(KeyEvent),
    /// The terminal has so many columns and rows.
    Size(u16, u16),
    Answer(Box<Result<Sample, String>>),
    /// The agent is to be asked again.
    Due,
    /// A second has passed.
    Tick,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Draw,
    Ask,
    Quit,
}

/// Characters of a filter.
const FILTER_MAX_CHARS: usize = 64;
/// Columns that a key of an arrow moves by.
const COLUMNS_STEP: usize = 8;
/// The terminal's size until it is known.
const SIZE: (u16, u16) = (80, 24);

// === impl Model ===

impl Model {
    pub fn new(sample: Sample, now: Instant) -> Self {
        Self {
            sample,
            received: now,
            now,
            failure: None,
            rates: None,
            pane: Pane::State,
            scrolled: Default::default(),
            filter: String::new(),
            input: Input::Commands,
            denied_only: false,
            paused: false,
            is_help: false,
            size: SIZE,
        }
    }

    /// Takes in what happened.
    pub fn update(&mut self, event: Event, now: Instant) -> Next {
        self.now = now;
        let next = match event {
            Event::Key(key) => self.key(key),
            Event::Size(columns, rows) => {
                self.size = (columns, rows);
                Next::Draw
            }
            Event::Answer(answer) => {
                // An answer that was on its way when `p` was pressed would change what is looked at.
                if !self.paused {
                    self.answer(*answer);
                }
                Next::Draw
            }
            Event::Due if self.paused => Next::Draw,
            Event::Due => Next::Ask,
            Event::Tick => Next::Draw,
        };
        self.clamp();
        next
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether only denied flows are shown.
    pub fn wants_denied(&self) -> bool {
        self.denied_only
    }

    /// How old the sample is.
    pub fn age(&self) -> Duration {
        self.now.saturating_duration_since(self.received)
    }

    /// Where the pane that is shown begins.
    pub fn scrolled(&self) -> Scrolled {
        self.scrolled.get(self.pane as usize).copied().unwrap_or_default()
    }

    fn answer(&mut self, answer: Result<Sample, String>) {
        match answer {
            Err(reason) => self.failure = Some(reason),
            Ok(sample) => {
                self.rates = Rates::between(&self.sample, &sample, self.age());
                (self.sample, self.received, self.failure) = (sample, self.now, None);
            }
        }
    }

    fn key(&mut self, key: KeyEvent) -> Next {
        if key.kind == KeyEventKind::Release {
            return Next::Draw;
        }
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Next::Quit;
        }
        match self.input {
            Input::Filter => self.letter(key),
            Input::Commands if self.is_help => {
                self.is_help = false;
                // The key that closes the help does nothing else, except that `q` quits.
                if key.code == KeyCode::Char('q') { Next::Quit } else { Next::Draw }
            }
            Input::Commands => self.command(key.code),
        }
    }

    fn letter(&mut self, key: KeyEvent) -> Next {
        match key.code {
            KeyCode::Enter => self.input = Input::Commands,
            KeyCode::Esc => {
                self.filter.clear();
                self.input = Input::Commands;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char('u') if key.modifiers.contains(KeyModifiers::CONTROL) => self.filter.clear(),
            KeyCode::Char(c)
                if !c.is_control()
                    && !key.modifiers.contains(KeyModifiers::CONTROL)
                    && self.filter.chars().count() < FILTER_MAX_CHARS =>
            {
                self.filter.extend(c.to_lowercase());
            }
            _ => {}
        }
        Next::Draw
    }

    fn command(&mut self, code: KeyCode) -> Next {
        let page = frame::body_rows(self.size.1).max(2) - 1;
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Next::Quit,
            KeyCode::Char('?' | 'h') => self.is_help = true,
            KeyCode::Char('/') => self.input = Input::Filter,
            KeyCode::Char('d') => {
                self.denied_only = !self.denied_only;
                return Next::Ask;
            }
            KeyCode::Char('p') => {
                self.paused = !self.paused;
                return if self.paused { Next::Draw } else { Next::Ask };
            }
            KeyCode::Tab => self.pane = self.pane.at(1),
            KeyCode::BackTab => self.pane = self.pane.at(Pane::ALL.len() - 1),
            KeyCode::Char(c) if c.is_ascii_digit() => self.pane = Pane::of_digit(c).unwrap_or(self.pane),
            KeyCode::Down | KeyCode::Char('j') => self.scroll(|rows| rows.saturating_add(1)),
            KeyCode::Up | KeyCode::Char('k') => self.scroll(|rows| rows.saturating_sub(1)),
            KeyCode::PageDown | KeyCode::Char(' ') => self.scroll(|rows| rows.saturating_add(page)),
            KeyCode::PageUp => self.scroll(|rows| rows.saturating_sub(page)),
            KeyCode::Home => self.scroll(|_| 0),
            KeyCode::End => self.scroll(|_| usize::MAX),
            KeyCode::Right => self.shift(|columns| columns.saturating_add(COLUMNS_STEP)),
            KeyCode::Left => self.shift(|columns| columns.saturating_sub(COLUMNS_STEP)),
            _ => {}
        }
        Next::Draw
    }

    fn scroll(&mut self, to: impl Fn(usize) -> usize) {
        if let Some(scrolled) = self.scrolled.get_mut(self.pane as usize) {
            scrolled.rows = to(scrolled.rows);
        }
    }

    fn shift(&mut self, to: impl Fn(usize) -> usize) {
        if let Some(scrolled) = self.scrolled.get_mut(self.pane as usize) {
            scrolled.columns = to(scrolled.columns);
        }
    }

    /// The last row and the last column stay where they can be seen.
    fn clamp(&mut self) {
        let content = panes::content(self, usize::from(self.size.0));
        let rows = content.lines.len().saturating_sub(frame::listed_rows(self.size.1, &content));
        let widest = content.heading.iter().chain(&content.lines).map(super::line::Line::width).max();
        let columns = widest.unwrap_or_default().saturating_sub(usize::from(self.size.0));
        self.scroll(|at| at.min(rows));
        self.shift(|at| at.min(columns));
    }
}

// === impl Rates ===

impl Rates {
    /// None unless one agent gave both answers, and counted in both.
    fn between(before: &Sample, after: &Sample, elapsed: Duration) -> Option<Self> {
        let seconds = elapsed.as_secs_f64();
        let (old, new) = (before.flows.as_ref()?, after.flows.as_ref()?);
        if before.status.pid != after.status.pid || seconds <= 0.0 {
            return None;
        }
        let rate = |old: u64, new: u64| Some(new.checked_sub(old)? as f64 / seconds);
        Some(Self {
            flows: rate(old.next, new.next)?,
            denied_packets: rate(old.packets.denied, new.packets.denied)?,
        })
    }
}
