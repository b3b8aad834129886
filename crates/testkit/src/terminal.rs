//! A pseudo-terminal on which a program runs, and what a user of it sees: [`Screen`] obeys the few sequences that our commands write, and panics at
//! any other, so that text from outside that reaches a terminal unescaped fails a test.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::ptr::{null, null_mut};

use crate::Process;

/// A terminal of a test. Dropping it hangs up.
#[derive(Debug)]
pub struct PseudoTerminal {
    keyboard: File,
    /// Keeps the terminal when the program has ended.
    line: OwnedFd,
    written: RefCell<Vec<u8>>,
    size: (u16, u16),
}

/// What a terminal shows.
#[derive(Debug, Clone)]
pub struct Screen {
    columns: usize,
    rows: usize,
    cells: Vec<(char, Look)>,
    row: usize,
    column: usize,
    look: Look,
    /// Whether the program has the whole screen, beside what was there before.
    pub is_alternate: bool,
    /// Whether the place of the cursor shows.
    pub is_cursor_shown: bool,
}

/// How a character looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Look {
    /// Of the 16 base colours.
    pub colour: Option<usize>,
    /// Thicker, or brighter.
    pub is_bold: bool,
    /// Ink and paper are exchanged.
    pub is_reversed: bool,
}

/// The background of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Background {
    /// As paper.
    Light,
    /// As terminals mostly are.
    Dark,
}

/// Of a character in a picture, in pixels.
const CELL_WIDTH: usize = 8;
const CELL_HEIGHT: usize = 17;

// === impl PseudoTerminal ===

impl PseudoTerminal {
    /// Starts a program as the leader of a session on a new terminal.
    #[track_caller]
    pub fn start(command: &mut Command, columns: u16, rows: u16) -> (Self, Process) {
        let size = winsize(columns, rows);
        let (mut keyboard, mut line) = (-1, -1);
        // SAFETY: both numbers are written, neither a name nor attributes are wanted, and the size is only read.
        let opened =
            unsafe { libc::openpty(&raw mut keyboard, &raw mut line, null_mut(), null(), &raw const size) };
        assert_eq!(opened, 0, "open a pseudo-terminal: {}", std::io::Error::last_os_error());
        // SAFETY: the call has opened both, and nothing else owns them.
        let (keyboard, line) = unsafe { (File::from_raw_fd(keyboard), OwnedFd::from_raw_fd(line)) };
        for fd in [keyboard.as_raw_fd(), line.as_raw_fd()] {
            // SAFETY: a flag of an open descriptor.
            assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) }, 0);
        }
        let end = || line.try_clone().expect("a descriptor");
        command.stdin(end()).stdout(end()).stderr(end());
        // SAFETY: both are system calls, and nothing is allocated between fork and exec.
        unsafe {
            command.pre_exec(|| {
                let is_done = libc::setsid() >= 0 && libc::ioctl(0, libc::TIOCSCTTY, 0) == 0;
                if is_done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            });
        }
        let process = Process::start(command);
        rustix::io::ioctl_fionbio(&keyboard, true).expect("a descriptor that does not block");
        (Self { keyboard, line, written: RefCell::default(), size: (columns, rows) }, process)
    }

    /// Presses keys.
    #[track_caller]
    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("write to a terminal");
    }

    /// Gives the window another size, which the kernel signals.
    #[track_caller]
    pub fn resize(&mut self, columns: u16, rows: u16) {
        let size = winsize(columns, rows);
        // SAFETY: the size is only read.
        let done = unsafe { libc::ioctl(self.keyboard.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        assert_eq!(done, 0, "resize a terminal: {}", std::io::Error::last_os_error());
        self.size = (columns, rows);
    }

    /// Everything that was written so far. The program waits if this is not called for some kilobytes.
    pub fn written(&self) -> String {
        let (mut written, mut chunk) = (self.written.borrow_mut(), [0; 4096]);
        while let Ok(count @ 1..) = (&self.keyboard).read(&mut chunk) {
            written.extend_from_slice(&chunk[..count]);
        }
        String::from_utf8_lossy(&written).into_owned()
    }

    /// What it shows now.
    #[track_caller]
    pub fn screen(&self) -> Screen {
        let mut screen = Screen::new(self.size.0.into(), self.size.1.into());
        screen.obey(&self.written());
        screen
    }

    /// Whether lines are edited and echoed, as a shell wants it.
    pub fn is_cooked(&self) -> bool {
        // SAFETY: the structure is plain numbers, and is written.
        let mut attributes: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: an open descriptor, and a structure of the right type.
        let read = unsafe { libc::tcgetattr(self.line.as_raw_fd(), &raw mut attributes) };
        let wanted = libc::ICANON | libc::ECHO | libc::ISIG;
        read == 0 && attributes.c_lflag & wanted == wanted
    }
}

fn winsize(columns: u16, rows: u16) -> libc::winsize {
    libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

// === impl Screen ===

impl Screen {
    /// One on which nothing was written.
    pub fn new(columns: usize, rows: usize) -> Self {
        let cells = vec![(' ', Look::default()); columns * rows];
        let look = Look::default();
        Self { columns, rows, cells, row: 0, column: 0, look, is_alternate: false, is_cursor_shown: true }
    }

    /// Shows what a program writes. A sequence whose end is not there yet is left out.
    #[track_caller]
    pub fn obey(&mut self, written: &str) {
        let mut rest = written.chars();
        while let Some(c) = rest.next() {
            match c {
                '\u{1b}' => {
                    let mut ahead = rest.clone();
                    match ahead.next() {
                        None => return,
                        Some(other) => assert_eq!(other, '[', "a sequence: {:?}", rest.as_str()),
                    }
                    let sequence: String = ahead.by_ref().take_while(|c| !c.is_ascii_alphabetic()).collect();
                    // `take_while` has taken the final letter, too.
                    let Some(last) = rest.as_str().chars().nth(1 + sequence.chars().count()) else { return };
                    self.sequence(&sequence, last);
                    rest = ahead;
                }
                '\r' => self.column = 0,
                '\n' => self.row += 1,
                c => {
                    assert!(!c.is_control(), "a control character: {c:?}");
                    self.put(c);
                }
            }
        }
    }

    /// Lines without the space at their ends.
    pub fn text(&self) -> String {
        let line = |row: &[(char, Look)]| row.iter().map(|(c, _)| *c).collect::<String>();
        self.cells.chunks(self.columns.max(1)).map(|row| line(row).trim_end().to_owned() + "\n").collect()
    }

    /// A picture.
    pub fn svg(&self, background: Background) -> String {
        let (width, height) = (self.columns * CELL_WIDTH + 16, self.rows * CELL_HEIGHT + 16);
        let (paper, ink) = background.colours();
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"monospace\" font-size=\"13\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"{paper}\"/>\n"
        );
        for (row, cells) in self.cells.chunks(self.columns.max(1)).enumerate() {
            let mut column = 0;
            for run in cells.chunk_by(|(_, a), (_, b)| a == b) {
                let text: String = run.iter().map(|(c, _)| *c).collect();
                svg.push_str(&picture(&text, run[0].1, (column, row), (paper, ink)));
                column += run.len();
            }
        }
        svg + "</svg>\n"
    }

    fn put(&mut self, c: char) {
        // What does not fit stays invisible: a window may have become smaller since.
        if self.row < self.rows && self.column < self.columns {
            self.cells[self.row * self.columns + self.column] = (c, self.look);
        }
        self.column += 1;
    }

    #[track_caller]
    fn sequence(&mut self, parameters: &str, last: char) {
        let number = |text: &str| text.parse::<usize>().unwrap_or(1);
        match (parameters, last) {
            ("?1049", 'h' | 'l') => {
                self.is_alternate = last == 'h';
                self.clear();
            }
            ("?25", 'h' | 'l') => self.is_cursor_shown = last == 'h',
            ("2", 'J') => self.clear(),
            (place, 'H') => {
                let (row, column) = place.split_once(';').unwrap_or((place, ""));
                (self.row, self.column) = (number(row).max(1) - 1, number(column).max(1) - 1);
            }
            (looks, 'm') => self.look(looks),
            _ => panic!("a sequence that no command of ours writes: {parameters:?} {last:?}"),
        }
    }

    #[track_caller]
    fn look(&mut self, looks: &str) {
        let mut numbers = looks.split(';').map(|text| text.parse::<usize>().unwrap_or(0));
        while let Some(number) = numbers.next() {
            match number {
                0 => self.look = Look::default(),
                1 => self.look.is_bold = true,
                7 => self.look.is_reversed = true,
                22 => self.look.is_bold = false,
                27 => self.look.is_reversed = false,
                38 => {
                    assert_eq!(numbers.next(), Some(5), "a colour of no palette: {looks}");
                    self.look.colour = numbers.next().filter(|colour| *colour < 16);
                    assert!(self.look.colour.is_some(), "not one of the 16 colours: {looks}");
                }
                39 => self.look.colour = None,
                // The background, and the colour of underlines, as they are.
                49 | 59 => {}
                _ => panic!("a look that no command of ours writes: {looks:?}"),
            }
        }
    }

    fn clear(&mut self) {
        self.cells.fill((' ', Look::default()));
    }
}

/// A run of characters that look alike.
fn picture(text: &str, look: Look, (column, row): (usize, usize), (paper, ink): (&str, &str)) -> String {
    if text.trim().is_empty() && !look.is_reversed {
        return String::new();
    }
    let count = text.chars().count();
    let (x, y, width) = (8 + column * CELL_WIDTH, 8 + row * CELL_HEIGHT, count * CELL_WIDTH);
    let colour = look.colour.map_or(ink, |colour| Background::of_paper(paper).colour(colour));
    let (fill, rect) = match look.is_reversed {
        true => (
            paper,
            format!(
                "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{CELL_HEIGHT}\" fill=\"{colour}\"/>\n"
            ),
        ),
        false => (colour, String::new()),
    };
    let weight = if look.is_bold { " font-weight=\"bold\"" } else { "" };
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let baseline = y + CELL_HEIGHT - 4;
    format!(
        "{rect}<text x=\"{x}\" y=\"{baseline}\" textLength=\"{width}\" fill=\"{fill}\"{weight} xml:space=\"preserve\">{text}</text>\n"
    )
}

// === impl Background ===

impl Background {
    const fn colours(self) -> (&'static str, &'static str) {
        match self {
            Self::Light => ("#ffffff", "#1a1a1a"),
            Self::Dark => ("#1a1a1a", "#e6e6e6"),
        }
    }

    fn of_paper(paper: &str) -> Self {
        if paper == Self::Light.colours().0 { Self::Light } else { Self::Dark }
    }

    /// Red, green and magenta, as terminals show them on this background; others are not used.
    const fn colour(self, number: usize) -> &'static str {
        match (self, number) {
            (Self::Light, 1) => "#a30000",
            (Self::Light, 2) => "#00660a",
            (Self::Light, 5) => "#8a008a",
            (Self::Dark, 1) => "#ff6b6b",
            (Self::Dark, 2) => "#5fd75f",
            (Self::Dark, 5) => "#e58fe5",
            _ => "#888888",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_shows_what_was_written_where_it_was_written() {
        let mut screen = Screen::new(10, 2);
        screen.obey("\u{1b}[?1049h\u{1b}[?25l\u{1b}[2J\u{1b}[2;3H\u{1b}[1;38;5;1mab\u{1b}[0mc\u{1b}[1");
        assert_eq!(screen.text(), "\n  abc\n");
        assert!(screen.is_alternate && !screen.is_cursor_shown);
        let svg = screen.svg(Background::Light);
        assert!(
            svg.contains("fill=\"#a30000\" font-weight=\"bold\" xml:space=\"preserve\">ab</text>"),
            "{svg}"
        );
    }

    #[test]
    #[should_panic(expected = "a sequence")]
    fn a_sequence_that_came_from_outside_is_not_obeyed() {
        Screen::new(10, 2).obey("\u{1b}]0;title\u{7}");
    }

    #[test]
    fn a_program_gets_keys_and_a_terminal_of_its_own() {
        let mut command = Command::new("sh");
        command.args(["-c", "read line; stty size; echo got $line; exec cat /dev/tty"]);
        let (mut terminal, _process) = PseudoTerminal::start(&mut command, 40, 5);
        assert!(terminal.is_cooked());
        terminal.press("hello\n");
        crate::eventually(std::time::Duration::from_secs(20), || {
            terminal.written().contains("5 40\r\ngot hello\r\n")
        });
    }
}
