//! A table of text in aligned columns; the test summary and the benchmarks print theirs with it.

use std::fmt;

/// Rows of cells below a heading; the first `left` columns are aligned left, the others right.
pub struct TextTable {
    left: usize,
    rows: Vec<Vec<String>>,
}

// === impl TextTable ===

impl TextTable {
    /// An empty table.
    pub fn new<S: Into<String>>(left: usize, heading: impl IntoIterator<Item = S>) -> Self {
        Self { left, rows: vec![heading.into_iter().map(Into::into).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn width(&self, column: usize) -> usize {
        self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    }
}

impl fmt::Display for TextTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = self.width(column);
                let gap = if column == 0 { "" } else { "  " };
                line += &match column < self.left {
                    true => format!("{gap}{cell:<width$}"),
                    false => format!("{gap}{cell:>width$}"),
                };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = TextTable::new(1, ["layer", "passed"]);
        table.row(["unit".to_owned(), "12345678".to_owned()]);
        assert_eq!(table.to_string(), "layer    passed\nunit   12345678\n");
    }
}
