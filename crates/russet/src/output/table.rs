//! Tables and lines for people. Most cells come from a store to which other programs write: control
//! characters in a cell are escaped, and its length is limited. Self-contained: the fuzz target of
//! the hostile tests includes this file.

/// Characters that a cell shows. The longest usual ones are sentences of `russet ipam check`; the formatter refuses widths above 65,535.
const CELL_MAX_CHARS: usize = 512;

/// `text` with its control characters escaped: stored text from other programs must not move the terminal's cursor.
pub fn visible(text: &str) -> String {
    let escaped = |c: char| {
        if c.is_control() || is_layout(c) { c.escape_default().to_string() } else { c.to_string() }
    };
    text.chars().map(escaped).collect()
}

/// Whether a character ends a line for some readers (YAML 1.1), is a mark of byte order, or turns what follows
/// (UAX #9): with those, a text looks like another one.
fn is_layout(c: char) -> bool {
    matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{feff}')
}

/// Rows under a heading, in columns as wide as they need to be.
pub fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|text| cell(text)).collect()).collect();
    let mut widths: Vec<usize> = heading.iter().map(|cell| cell.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let heading = heading.iter().map(|cell| (*cell).to_owned()).collect();
    for row in std::iter::once(&heading).chain(&rows) {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// What a cell shows of a text; programs get all of it by `-o json`.
fn cell(text: &str) -> String {
    let shown = visible(text);
    match shown.char_indices().nth(CELL_MAX_CHARS) {
        None => shown,
        Some((end, _)) => format!("{}... ({} characters)", &shown[..end], text.chars().count()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_others_are_shown_and_not_obeyed() {
        let text = table(&["POD"], &[vec!["a\u{1b}[2Jb\nc \u{e9}".to_owned()]]);
        assert_eq!(text, "POD\na\\u{1b}[2Jb\\nc \u{e9}\n");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = vec![
            vec!["n1".to_owned(), "10.244.0.0/26".to_owned()],
            vec!["node-2".to_owned(), "-".to_owned()],
        ];
        assert_eq!(table(&["NODE", "BLOCK"], &rows), "NODE    BLOCK\nn1      10.244.0.0/26\nnode-2  -\n");
    }

    #[test]
    fn a_cell_of_any_length_is_cut() {
        let rows = vec![vec!["\u{e9}".repeat(70_000), "x".to_owned()]];
        let text = table(&["HANDLE", "NODE"], &rows);
        assert!(text.contains("\u{e9}... (70000 characters)  x\n"), "{}", text.len());
        assert!(text.chars().count() < 3 * CELL_MAX_CHARS);
    }
}
