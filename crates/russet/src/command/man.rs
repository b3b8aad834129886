//! `russet man`: writes the manual pages, one for each visible verb. `cargo xtask dist --packages` calls it.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use russet_flanneld::flags;

use super::Failure;
use crate::cli::Cli;
use crate::cli::generated::ManArgs;

/// At the top of each page, and at its foot.
const MANUAL: &str = "Russet Manual";
const SOURCE: &str = concat!("Russet ", env!("CARGO_PKG_VERSION"));
/// Its flags are flannel's, which clap does not know.
const FLANNELD: &str = "flanneld";
/// How the paragraphs of a verb's closing help begin that get a section of their own.
const EXAMPLES: &str = "Examples:";
const EXIT_CODES: &str = "Exit codes:";

pub fn run(args: &ManArgs) -> Result<(), Failure> {
    let failed = |path: &Path, error: io::Error| format!("write {}: {error}", path.display());
    fs::create_dir_all(&args.out).map_err(|error| failed(&args.out, error))?;
    for (name, text) in pages()? {
        let path = args.out.join(name);
        fs::write(&path, text).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

/// The names of the pages' files, and their texts.
fn pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    // `russet help` says what the pages say.
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add(&command, &mut pages)?;
    Ok(pages)
}

fn add(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    // An empty date would be left out, and the rest would take its place; a real one would change the pages with each build.
    let man = Man::new(command.clone()).date(" ").source(SOURCE).manual(MANUAL);
    pages.push((man.get_filename(), page(command, &man)?));
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    verbs.into_iter().try_for_each(|verb| add(verb, pages))
}

fn page(command: &Command, man: &Man) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.get_subcommands().any(|verb| !verb.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    let mut closing = Roff::new();
    if command.get_name() == FLANNELD {
        closing.control("SH", ["FLAGS"]);
        verbatim(&mut closing, flags::usage(FLANNELD).lines().skip(1));
    }
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    closing_help(&mut closing, &help);
    closing.to_writer(&mut page)?;
    Ok(page)
}

/// clap_mangen would fill the lines of examples, as if they were one sentence.
fn closing_help(page: &mut Roff, help: &str) {
    let mut has_notes = false;
    for paragraph in help.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        if let Some(examples) = paragraph.strip_prefix(EXAMPLES) {
            page.control("SH", ["EXAMPLES"]);
            verbatim(page, examples.lines().skip(1));
        } else if let Some(codes) = paragraph.strip_prefix(EXIT_CODES) {
            page.control("SH", ["EXIT STATUS"]);
            page.text([roman(codes.trim())]);
        } else {
            page.control(if has_notes { "PP" } else { "SH" }, (!has_notes).then_some("NOTES"));
            has_notes = true;
            match paragraph.lines().any(|line| line.starts_with(' ')) {
                true => verbatim(page, paragraph.lines()),
                false => drop(page.text([roman(paragraph.replace('\n', " "))])),
            }
        }
    }
}

/// Lines as they are, without the two blanks that set them apart in the help.
fn verbatim<'a>(page: &mut Roff, lines: impl Iterator<Item = &'a str>) {
    page.control("nf", []);
    for line in lines {
        page.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
    }
    page.control("fi", []);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(name: &str) -> String {
        let found = pages().unwrap().into_iter().find(|(found, _)| found == name);
        String::from_utf8(found.unwrap_or_else(|| panic!("no page {name}")).1).unwrap()
    }

    #[test]
    fn every_visible_verb_has_a_page_and_no_hidden_one() {
        let names: Vec<String> = pages().unwrap().into_iter().map(|(name, _)| name).collect();
        for verb in Cli::command().get_subcommands() {
            let name = format!("russet-{}.1", verb.get_name());
            assert_eq!(names.contains(&name), !verb.is_hide_set(), "{name}");
        }
        for name in ["russet.1", "russet-ipam-show.1", "russet-cni-add.1", "russet-policy-test.1"] {
            assert!(names.iter().any(|found| found == name), "{name} is not among {names:?}");
        }
    }

    #[test]
    fn examples_keep_their_lines_and_exit_codes_have_a_section() {
        let page = text_of("russet-demo.1");
        let examples =
            page.split(".SH EXAMPLES\n.nf\n").nth(1).expect("examples").split(".fi\n").next().unwrap();
        assert!(examples.lines().any(|line| line.starts_with("russet demo \\-\\-mode routed")), "{examples}");
        assert!(page.contains(".SH \"EXIT STATUS\"\n0 good; 3"), "{page}");
        let agent = text_of("russet-agent.1");
        assert!(agent.contains("RUSSET_MTU"), "variables are named");
        let title = agent.lines().find(|line| line.starts_with(".TH")).unwrap();
        assert_eq!(title, format!(".TH russet-agent 1 \" \" \"{SOURCE}\" \"{MANUAL}\""));
        assert!(text_of("russet-flanneld.1").contains("\\-etcd\\-endpoints"), "flannel's flags");
    }
}
