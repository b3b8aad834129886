//! Text of one line, which is as many characters as it is columns: whatever names and reasons contain, what is drawn moves no cursor, turns no
//! direction and is as wide as it is counted.

use crate::output::visible;

/// What a piece of text is, for its colour. The text itself says the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    Strong,
    Good,
    Warn,
    Bad,
    /// In reverse.
    Marked,
}

/// Characters that are one column wide each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Piece {
    text: String,
    tone: Tone,
}

/// Pieces side by side.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line(Vec<Piece>);

/// Rows of cells below a heading.
#[derive(Debug)]
pub struct Table {
    pub heading: &'static [&'static str],
    pub rows: Vec<Vec<Piece>>,
}

/// Characters of foreign text in one piece: the longest usual ones are reasons of several sentences.
const PIECE_MAX_CHARS: usize = 400;
/// Columns between two cells.
const GAP: usize = 2;

// === impl Piece ===

impl Piece {
    pub fn new(text: impl AsRef<str>, tone: Tone) -> Self {
        let text = text.as_ref();
        let end = text.char_indices().nth(PIECE_MAX_CHARS).map(|(end, _)| end);
        let mut shown: String =
            visible(text.get(..end.unwrap_or(text.len())).unwrap_or_default()).chars().map(column).collect();
        if end.is_some() {
            shown.push_str("...");
        }
        Self { text: shown, tone }
    }

    pub fn plain(text: impl AsRef<str>) -> Self {
        Self::new(text, Tone::Plain)
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn tone(&self) -> Tone {
        self.tone
    }

    pub fn width(&self) -> usize {
        self.text.chars().count()
    }

    fn padded(&self, width: usize) -> Self {
        Self { text: format!("{:width$}", self.text), tone: self.tone }
    }
}

/// A character of printable ASCII, or a letter of scripts of which every terminal makes one column, or an escape. Other scripts have letters that
/// are two columns or none, depending on the terminal, or that turn the direction of their line.
fn column(c: char) -> String {
    let is_column = matches!(c, ' '..='~' | '\u{a1}'..='\u{ac}' | '\u{ae}'..='\u{2ff}' | '\u{370}'..='\u{482}' | '\u{48a}'..='\u{52f}');
    if is_column { c.to_string() } else { c.escape_unicode().to_string() }
}

// === impl Line ===

impl Line {
    pub fn of(pieces: impl IntoIterator<Item = Piece>) -> Self {
        Self(pieces.into_iter().collect())
    }

    /// Foreign text in one tone.
    pub fn new(text: impl AsRef<str>, tone: Tone) -> Self {
        Self::of([Piece::new(text, tone)])
    }

    pub fn pieces(&self) -> &[Piece] {
        &self.0
    }

    pub fn text(&self) -> String {
        self.0.iter().map(Piece::text).collect()
    }

    pub fn width(&self) -> usize {
        self.0.iter().map(Piece::width).sum()
    }

    /// Whether `needle`, in lower case, is in it.
    pub fn has(&self, needle: &str) -> bool {
        needle.is_empty() || self.text().to_lowercase().contains(needle)
    }

    /// What `width` columns show of it from column `from` on; `<` and `>` say that there is more.
    pub fn window(&self, from: usize, width: usize) -> Self {
        let total = self.width();
        let mut window = self.columns(from, width);
        if from > 0 && total > 0 && width > 0 {
            let rest = window.columns(1, width);
            window = Self::of([Piece::plain("<")].into_iter().chain(rest.0));
        }
        if total > from.saturating_add(width) && width > 1 {
            window = window.columns(0, width - 1);
            window.0.push(Piece::plain(">"));
        }
        window
    }

    fn columns(&self, from: usize, width: usize) -> Self {
        let (mut skip, mut left) = (from, width);
        let mut pieces = Vec::new();
        for piece in &self.0 {
            let text: String = piece.text.chars().skip(skip).take(left).collect();
            skip = skip.saturating_sub(piece.width());
            left -= text.chars().count();
            if !text.is_empty() {
                pieces.push(Piece { text, tone: piece.tone });
            }
        }
        Self(pieces)
    }

    /// The same in lines of at most `width` columns, broken at spaces; those after the first are indented.
    pub fn wrapped(&self, width: usize, indent: usize) -> Vec<Self> {
        let indent = if indent * 2 < width { indent } else { 0 };
        let text: Vec<char> = self.text().chars().collect();
        let (mut lines, mut at) = (Vec::new(), 0);
        while text.len() - at > width - self.indented(&lines, indent) && width > 0 {
            let room = width - self.indented(&lines, indent);
            let window = text.get(at..at + room + 1).unwrap_or_default();
            // The indentation is no place to break at.
            let words = window.iter().position(|c| *c != ' ').unwrap_or(room);
            let end = window.iter().rposition(|c| *c == ' ').filter(|end| *end > words).unwrap_or(room);
            lines.push((at, end));
            at += end;
            at += usize::from(text.get(at) == Some(&' '));
        }
        lines.push((at, text.len() - at));
        let line = |(number, (from, width)): (usize, (usize, usize))| {
            let mut line = self.columns(from, width);
            if number > 0 && indent > 0 {
                line.0.insert(0, Piece::plain(" ".repeat(indent)));
            }
            line
        };
        lines.into_iter().enumerate().map(line).collect()
    }

    /// The indentation of the line that follows these.
    fn indented<T>(&self, lines: &[T], indent: usize) -> usize {
        if lines.is_empty() { 0 } else { indent }
    }
}

// === impl Table ===

impl Table {
    /// The heading and the rows, in columns as wide as they need to be.
    pub fn lines(&self) -> (Line, Vec<Line>) {
        let mut widths: Vec<usize> = self.heading.iter().map(|name| name.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.width());
            }
        }
        let heading: Vec<Piece> = self.heading.iter().map(|name| Piece::new(name, Tone::Strong)).collect();
        (row(&heading, &widths), self.rows.iter().map(|cells| row(cells, &widths)).collect())
    }
}

fn row(cells: &[Piece], widths: &[usize]) -> Line {
    let last = cells.len().saturating_sub(1);
    let mut pieces = Vec::new();
    for (at, (cell, width)) in cells.iter().zip(widths).enumerate() {
        // Only the text has the tone, not the space beside it.
        pieces.push(cell.clone());
        if at < last {
            let space = width.saturating_sub(cell.width()) + GAP;
            pieces.push(Piece::plain("").padded(space));
        }
    }
    Line(pieces)
}
