//! A frame: the lines of the whole terminal, and how they are drawn. Pure.

use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};

use super::line::{Line, Piece, Tone};
use super::model::{Input, Model};
use super::panes::{self, Content, Pane, clock};
use crate::command::status::{self, milliseconds};
use crate::output::age;

const KEYS: [(&str, &str); 11] = [
    ("1 to 7, Tab, Shift-Tab", "choose the pane"),
    ("Up, Down, PgUp, PgDn", "scroll; also k, j, Space, Home, End"),
    ("Left, Right", "the rest of lines that end with >"),
    ("/", "show only rows that contain a text; Enter keeps it, Esc clears it"),
    ("d", "show only denied flows, or all"),
    ("p", "pause: keep what is shown, and ask no more; again: go on"),
    ("?", "this help; any key closes it"),
    ("q, Esc, Ctrl-C", "quit"),
    ("", ""),
    ("!", "a problem, with the next step below it"),
    ("times", "are in UTC, and the agent's"),
];

/// All lines of a terminal of this size.
pub fn frame(model: &Model, width: u16, height: u16) -> Vec<Line> {
    let (columns, rows) = (usize::from(width), usize::from(height));
    let mut lines = header(model, columns, header_rows(height));
    let body = body_rows(height);
    let content =
        if model.is_help { Content { heading: None, lines: help() } } else { panes::content(model, columns) };
    let listed = listed_rows(height, &content);
    let scrolled = if model.is_help { Default::default() } else { model.scrolled() };
    if body > listed {
        lines.extend(content.heading.iter().map(|line| line.window(scrolled.columns, columns)));
    }
    let shown = content.lines.iter().skip(scrolled.rows).take(listed);
    lines.extend(shown.map(|line| line.window(scrolled.columns, columns)));
    lines.resize(rows - footer_rows(height), Line::default());
    if footer_rows(height) > 0 {
        lines.push(footer(model, content.lines.len(), scrolled.rows, listed).window(0, columns));
    }
    lines
}

/// Draws a frame into a buffer, whatever its size.
pub fn draw(model: &Model, buffer: &mut Buffer, is_coloured: bool) {
    let area = buffer.area;
    for (y, line) in (area.top()..area.bottom()).zip(frame(model, area.width, area.height)) {
        let mut x = area.left();
        for piece in line.pieces() {
            (x, _) = buffer.set_stringn(x, y, piece.text(), usize::MAX, style(piece.tone(), is_coloured));
        }
    }
}

/// Everything that all panes have, as text.
pub fn text(model: &Model) -> String {
    let status = &model.sample.status;
    let mut text = format!("{}\n", status::heading(status, status::problems(status).len()));
    for pane in Pane::ALL {
        let content = panes::of(model, pane, usize::MAX);
        if pane != Pane::State {
            text.push_str(&format!("\n{}\n", pane.title()));
        }
        for line in content.heading.iter().chain(&content.lines) {
            text.push_str(line.text().trim_end());
            text.push('\n');
        }
    }
    text
}

/// Rows between the header and the footer.
pub fn body_rows(height: u16) -> usize {
    usize::from(height) - header_rows(height) - footer_rows(height)
}

/// Rows of a pane that are seen below its heading.
pub fn listed_rows(height: u16, content: &Content) -> usize {
    let body = body_rows(height);
    // A heading with no row below it says nothing.
    body - usize::from(content.heading.is_some() && body > 1)
}

/// A small terminal has less of the header.
const fn header_rows(height: u16) -> usize {
    match height {
        0 => 0,
        1..=2 => 1,
        3..=6 => 2,
        _ => 3,
    }
}

const fn footer_rows(height: u16) -> usize {
    if height > 4 { 1 } else { 0 }
}

/// One of 16 colours that each terminal has in tones that suit its background; none for what is as usual.
fn style(tone: Tone, is_coloured: bool) -> Style {
    let style = Style::new();
    let coloured = |colour: Color| if is_coloured { style.fg(colour) } else { style };
    match tone {
        Tone::Plain => style,
        Tone::Strong => style.add_modifier(Modifier::BOLD),
        Tone::Good => coloured(Color::Green),
        // Yellow cannot be read on white.
        Tone::Warn => coloured(Color::Magenta).add_modifier(Modifier::BOLD),
        Tone::Bad => coloured(Color::Red).add_modifier(Modifier::BOLD),
        Tone::Marked => style.add_modifier(Modifier::REVERSED),
    }
}

// === header ===

/// The node, what is known beside it, and the panes: the first and the last of these, if there is room for two.
fn header(model: &Model, width: usize, rows: usize) -> Vec<Line> {
    let first = match &model.failure {
        Some(reason) if rows < 3 => away(model, reason),
        _ => heading(model),
    };
    let all = match rows {
        0 => Vec::new(),
        1 => vec![first],
        2 => vec![first, tabs(model, width)],
        _ => vec![first, facts(model), tabs(model, width)],
    };
    all.iter().map(|line| line.window(0, width)).collect()
}

fn heading(model: &Model) -> Line {
    let status = &model.sample.status;
    let problems = status::problems(status).len();
    let tone = match (status.unmet().next(), problems) {
        (Some(_), _) => Tone::Bad,
        (None, 0) => Tone::Good,
        (None, _) => Tone::Warn,
    };
    let old = if model.failure.is_some() { "old: " } else { "" };
    Line::of([Piece::new(old, Tone::Strong), Piece::new(status::heading(status, problems), tone)])
}

fn facts(model: &Model) -> Line {
    if let Some(reason) = &model.failure {
        return away(model, reason);
    }
    let page = &model.sample.page;
    let mut facts = vec![
        format!("as of {}", clock(&page.at, &page.at)),
        format!("pods {}", page.pods_total),
        format!("repairs {}", page.repairs_total),
    ];
    facts.extend(model.rates.map(|rates| format!("flows {:.1}/s", rates.flows)));
    let latency = page.latency_us.map(|us| format!(", {}", milliseconds(us))).unwrap_or_default();
    facts.push(format!("datastore {}{latency}", page.datastore));
    let paused = if model.is_paused() { " PAUSED " } else { "" };
    let space = if model.is_paused() { " " } else { "" };
    Line::of([Piece::new(paused, Tone::Marked), Piece::plain(space), Piece::plain(facts.join(" | "))])
}

fn away(model: &Model, reason: &str) -> Line {
    let at = &model.sample.page.at;
    let since = format!("the agent does not answer since {} ({})", clock(at, at), age(model.age()));
    Line::new(format!("{since}: {reason}"), Tone::Marked)
}

/// The panes' titles, or their numbers where there is no room for that.
fn tabs(model: &Model, width: usize) -> Line {
    let tabs = |is_short: bool| {
        let tab = |(at, pane): (usize, Pane)| {
            let (number, title) = (at + 1, pane.title());
            match (pane == model.pane, is_short) {
                (true, _) => Piece::new(format!("[{number} {title}]"), Tone::Marked),
                (false, false) => Piece::plain(format!(" {number} {title} ")),
                (false, true) => Piece::plain(format!(" {number} ")),
            }
        };
        Line::of(Pane::ALL.into_iter().enumerate().map(tab))
    };
    let long = tabs(false);
    if long.width() <= width { long } else { tabs(true) }
}

// === body and footer ===

fn help() -> Vec<Line> {
    let key = |(key, what): (&str, &str)| {
        Line::of([Piece::new(format!("{key:<24}"), Tone::Strong), Piece::plain(what)])
    };
    KEYS.into_iter().map(key).collect()
}

fn footer(model: &Model, lines: usize, first: usize, listed: usize) -> Line {
    if model.input == Input::Filter {
        let filter = [Piece::new("filter: ", Tone::Strong), Piece::plain(&model.filter)];
        let end = [Piece::new(" ", Tone::Marked), Piece::plain("  Enter keeps it, Esc clears it")];
        return Line::of(filter.into_iter().chain(end));
    }
    let mut pieces = Vec::new();
    if !model.filter.is_empty() {
        pieces.push(Piece::new(format!("filter {:?}", model.filter), Tone::Strong));
    }
    if model.wants_denied() {
        pieces.push(Piece::new("denied only", Tone::Strong));
    }
    if lines > listed {
        let last = (first + listed).min(lines);
        pieces.push(Piece::plain(format!("{}-{last} of {lines}", (first + 1).min(last))));
    }
    pieces.push(Piece::plain("? help  q quit  Tab pane  / filter  d denied  p pause"));
    let gaps = std::iter::once("").chain(std::iter::repeat(" | ")).map(Piece::plain);
    Line::of(gaps.zip(pieces).flat_map(|(gap, piece)| [gap, piece]))
}
