//! The pieces of a file within which a citation may rely on a page that was named before it.

use std::path::Path;

/// Text that belongs together, and the line on which it begins.
pub struct Block {
    pub line: usize,
    pub text: String,
}

/// Comments and paragraphs as one block each, every other line as its own.
pub fn blocks(file: &Path, text: &str) -> Vec<Block> {
    let markdown = file.extension().is_some_and(|end| end == "md");
    let mut blocks: Vec<Block> = Vec::new();
    let mut open = false;
    let mut fenced = false;
    for (at, line) in text.lines().enumerate() {
        fenced ^= markdown && line.trim_start().starts_with("```");
        let joins = if markdown { markdown_text(line, fenced) } else { comment(line) };
        let shown = joins.unwrap_or(line);
        match blocks.last_mut().filter(|_| open && joins.is_some()) {
            Some(block) => {
                block.text.push(' ');
                block.text.push_str(shown);
            }
            None => blocks.push(Block { line: at + 1, text: shown.to_owned() }),
        }
        open = joins.is_some();
    }
    blocks
}

fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    ["///", "//!", "//", "#"]
        .iter()
        .find_map(|mark| line.strip_prefix(mark))
        .filter(|_| !line.starts_with("#["))
}

/// Lines of a paragraph belong together; headings, rows of tables, items and code stand alone.
fn markdown_text(line: &str, fenced: bool) -> Option<&str> {
    let alone = line.trim().is_empty() || fenced || line.starts_with(['#', '|', '`']);
    (!alone).then_some(line)
}

#[test]
fn comments_are_joined_and_code_is_not() {
    let found = blocks(Path::new("x.rs"), "/// one\n/// two\nfn a() {} // three\n// four\n");
    let texts: Vec<&str> = found.iter().map(|block| block.text.trim()).collect();
    assert_eq!(texts, ["one  two", "fn a() {} // three", "four"]);
}
