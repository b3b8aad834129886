//! Markdown pages of the repository, for tests that run or parse the commands in them.

use std::fs;
use std::path::{Path, PathBuf};

/// A page.
#[derive(Debug, Clone)]
pub struct Page {
    /// Its path in the repository, for example `docs/install.md`.
    pub path: String,
    /// The fenced blocks in their order.
    pub blocks: Vec<Block>,
    /// The lines outside of blocks, with their numbers from 1.
    pub prose: Vec<(usize, String)>,
}

/// A fenced block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The number of its first line of text, from 1.
    pub line: usize,
    /// What follows the opening fence, for example `sh no-run`.
    pub info: String,
    /// The line before the opening fence.
    pub before: String,
    /// The lines between the fences.
    pub text: String,
}

/// The directory that contains all crates.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

// === impl Page ===

impl Page {
    /// Reads a page by its path in the repository.
    pub fn read(path: &str) -> Self {
        let text =
            fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        Self::parse(path, &text)
    }

    /// All pages but those of docs/spec, which describe other programs.
    pub fn all() -> Vec<Self> {
        let in_directory = |name: &str| {
            let entries = fs::read_dir(repository().join(name)).expect("list pages").flatten();
            let files: Vec<PathBuf> = entries.map(|entry| Path::new(name).join(entry.file_name())).collect();
            files
        };
        let files = [in_directory(""), in_directory("docs")].concat();
        let mut pages: Vec<String> = files
            .iter()
            .filter(|path| path.extension().is_some_and(|end| end == "md"))
            .map(|path| path.display().to_string())
            .collect();
        pages.sort();
        pages.iter().map(|path| Self::read(path)).collect()
    }

    fn parse(path: &str, text: &str) -> Self {
        let (mut blocks, mut prose): (Vec<Block>, Vec<(usize, String)>) = (Vec::new(), Vec::new());
        let mut open: Option<(usize, Block)> = None;
        for (at, line) in text.lines().enumerate() {
            let content = line.trim_start();
            match (&mut open, content.strip_prefix("```")) {
                (None, Some(info)) => {
                    let before = prose.last().map(|(_, line)| line.clone()).unwrap_or_default();
                    let block = Block { line: at + 2, info: info.to_owned(), before, text: String::new() };
                    open = Some((line.len() - content.len(), block));
                }
                (None, None) => prose.push((at + 1, line.to_owned())),
                (Some(_), Some(_)) => blocks.extend(open.take().map(|(_, block)| block)),
                // A block in a list is indented like the list's text.
                (Some((indent, block)), None) => {
                    block.text.push_str(line.get(*indent..).unwrap_or(content));
                    block.text.push('\n');
                }
            }
        }
        assert!(open.is_none(), "{path}: a block is not closed");
        Self { path: path.to_owned(), blocks, prose }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_their_line_their_info_and_the_line_before() {
        let page = Page::parse(
            "p.md",
            "# T\n<!-- why -->\n```sh no-run\na\n  b\n```\n1. x\n\n   ```\n   c\n\n   ```\n",
        );
        let block = |line, info: &str, before: &str, text: &str| Block {
            line,
            info: info.to_owned(),
            before: before.to_owned(),
            text: text.to_owned(),
        };
        assert_eq!(
            page.blocks,
            [block(4, "sh no-run", "<!-- why -->", "a\n  b\n"), block(10, "", "", "c\n\n")]
        );
        assert_eq!(page.prose.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [1, 2, 7, 8]);
    }
}
