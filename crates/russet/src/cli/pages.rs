//! The pages of the repository and the examples of the help name only verbs and flags that exist.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory as _, Parser as _};
use russet_flanneld::flags::FLAGS;
use russet_testkit::pages::Page;

use super::Cli;

/// Code that begins like a command: the alias of a link.
const NO_COMMANDS: [&str; 1] = ["russet overlay"];
/// What may stand before a command in a shell.
const BEFORE: [&str; 4] = ["do", "then", "exec", "sudo"];

/// The commands of a shell line, each as its words. Quotes and `$(...)` are understood.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![vec![String::new()]];
    let (mut quote, mut depth) = (None, 0);
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        let command = commands.last_mut().expect("there is always one");
        let word = command.last_mut().expect("there is always one");
        match c {
            '$' if chars.peek() == Some(&'(') => depth += 1,
            ')' if depth > 0 => depth -= 1,
            _ => {}
        }
        match (c, quote) {
            _ if depth > 0 => word.push(c),
            (_, Some(mark)) if c == mark => quote = None,
            (_, Some(_)) => word.push(c),
            ('\'' | '"', None) => quote = Some(c),
            ('#', None) if word.is_empty() => break,
            // What follows a redirection is the name of a file, and no command.
            (';' | '|' | '&' | '>' | '<', None) => commands.push(vec![String::new()]),
            (c, None) if c.is_whitespace() => command.push(String::new()),
            (c, None) => word.push(c),
        }
    }
    commands.iter_mut().for_each(|words| words.retain(|word| !word.is_empty()));
    commands
}

/// The arguments, if the command is `russet`, by any path.
fn arguments(words: &[String]) -> Option<&[String]> {
    let is_before = |word: &String| {
        BEFORE.contains(&word.as_str()) || word.split_once('=').is_some_and(|(name, _)| is_variable(name))
    };
    let start = words.iter().position(|word| !is_before(word))?;
    match &words[start..] {
        [program, arguments @ ..] if program.rsplit('/').next() == Some("russet") => Some(arguments),
        [cargo, run, rest @ ..] if cargo == "cargo" && run == "run" && !rest.contains(&"-p".to_owned()) => {
            let end = rest.iter().position(|word| word == "--")?;
            Some(&rest[end + 1..])
        }
        _ => None,
    }
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
}

/// Whether a page has it in the place of a value: `NAME`, `10.0.0.1/N`, `$variable`.
fn is_placeholder(value: &str) -> bool {
    let letters: Vec<char> = value.chars().filter(|c| c.is_alphabetic()).collect();
    value.contains('$') || (!letters.is_empty() && letters.iter().all(|c| c.is_uppercase()))
}

/// Why the command line refuses these arguments. A line in the text may be the beginning of a
/// command.
fn refusal(arguments: &[String], is_whole: bool) -> Option<String> {
    if let [verb, words @ ..] = arguments
        && verb == "flanneld"
    {
        return words.iter().find(|word| !is_flannels(word)).map(|word| format!("there is no flag {word}"));
    }
    let error = Cli::try_parse_from(["russet".to_owned()].iter().chain(arguments)).err()?;
    let value = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => value.as_str(),
        _ => "",
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => None,
        ErrorKind::InvalidValue | ErrorKind::ValueValidation if is_placeholder(value) => None,
        // An option whose value the text leaves out.
        ErrorKind::InvalidValue if !is_whole && value.is_empty() => None,
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            if !is_whole =>
        {
            None
        }
        _ => Some(error.to_string()),
    }
}

fn is_flannels(word: &str) -> bool {
    let name = word.trim_start_matches('-');
    let name = name.split_once('=').map_or(name, |(name, _)| name);
    !word.starts_with('-') || FLAGS.iter().any(|flag| flag.name == name) || name == "h"
}

/// The lines of commands in the blocks of a page, with their numbers. A block that is not for a
/// shell shows output, too: there a command follows `$ `.
fn lines(page: &Page) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    for block in &page.blocks {
        let is_shell = block.info.split(' ').next() == Some("sh");
        let mut is_continued = false;
        for (at, line) in block.text.lines().enumerate() {
            let line = line.trim();
            let command = match line.strip_prefix("$ ") {
                Some(command) => command,
                None if is_shell || is_continued || line.starts_with("russet ") => line,
                None => continue,
            };
            let (command, continues) = command.strip_suffix('\\').map_or((command, false), |it| (it, true));
            match lines.last_mut() {
                Some((_, whole)) if is_continued => whole.push_str(command),
                _ => lines.push((block.line + at, command.to_owned())),
            }
            is_continued = continues;
        }
    }
    lines
}

/// The code in a line of text that begins with `russet `, without synopses.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split('`').skip(1).step_by(2);
    code.filter(|code| {
        code.starts_with("russet ")
            && !NO_COMMANDS.contains(code)
            && !code.contains(['[', '<', '|', '…'])
            && !code.contains("...")
    })
}

#[test]
fn every_command_of_a_page_parses() {
    let (mut refused, mut parsed) = (Vec::new(), 0);
    for page in Page::all() {
        let blocks = lines(&page).into_iter().map(|(at, line)| (at, line, true));
        let quoted =
            page.prose.iter().flat_map(|(at, line)| quoted(line).map(|code| (*at, code.to_owned(), false)));
        for (at, line, is_whole) in blocks.chain(quoted) {
            for words in commands(&line) {
                let Some(arguments) = arguments(&words) else { continue };
                parsed += 1;
                if let Some(why) = refusal(arguments, is_whole) {
                    refused.push(format!("{}:{at}: {line}\n{why}", page.path));
                }
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(parsed > 300, "only {parsed} commands were found");
}

/// The examples in the help of a command and of its verbs. Two blanks separate a command from its
/// explanation.
fn examples(command: &Command, found: &mut Vec<String>) {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let lines = help.lines().filter_map(|line| line.strip_prefix("  "));
    found.extend(lines.filter_map(|line| line.split("  ").next()).map(str::to_owned));
    command.get_subcommands().for_each(|verb| examples(verb, found));
}

#[test]
fn every_example_of_the_help_parses() {
    let mut lines = Vec::new();
    examples(&Cli::command(), &mut lines);
    let commands: Vec<_> = lines.iter().flat_map(|line| commands(line)).collect();
    let parsed: Vec<_> = commands.iter().filter_map(|words| arguments(words)).collect();
    assert!(parsed.len() > 60, "only {} examples were found", parsed.len());
    for arguments in parsed {
        assert_eq!(refusal(arguments, true), None, "{arguments:?}");
    }
}

#[test]
fn a_line_is_divided_into_commands_as_a_shell_divides_it() {
    let divided =
        commands("A=1 russet get 'a b' | jq \".x # y\"; do russet x \"$(oc get \"$o\")\" # note | russet no");
    assert_eq!(divided[0], ["A=1", "russet", "get", "a b"]);
    assert_eq!(divided[1], ["jq", ".x # y"]);
    assert_eq!(divided[2], ["do", "russet", "x", "$(oc get \"$o\")"]);
    assert_eq!(divided.len(), 3);
    assert_eq!(arguments(&divided[0]).unwrap(), ["get", "a b"]);
    assert_eq!(arguments(&divided[1]), None);
}

#[test]
fn an_unknown_verb_and_an_unknown_flag_are_found_and_placeholders_are_accepted() {
    let refusal = |line: &str, is_whole| refusal(arguments(&commands(line)[0]).unwrap(), is_whole);
    assert!(
        refusal("russet ipam shout", true).is_some() && refusal("russet ipam show --ips", false).is_some()
    );
    assert!(refusal("russet flanneld -no-such-flag", true).is_some());
    assert_eq!(refusal("target/dist/russet ipam show --ip ADDRESS", true), None);
    assert!(refusal("russet ipam", true).is_some() && refusal("russet ipam", false).is_none());
}
