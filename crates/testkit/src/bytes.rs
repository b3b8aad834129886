//! Hostile input: a corpus of files, replayed as it is and then changed at random, again and again, with a seed that replays it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use crate::Random;

mod tree;

/// How many inputs are made of a corpus.
const INPUTS: u64 = 4000;
/// As many changes in one input at most.
const CHANGES_MAX: usize = 5;
/// Larger ones are truncated: other tests check limits on size.
const INPUT_MAX_BYTES: usize = 64 * 1024;
/// Words that are likely to break parsers of JSON, of versions and of lists of pairs.
const WORDS: [&str; 40] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\\u0000",
    "\\ud800",
    "null",
    "true",
    "false",
    "0",
    "-1",
    "-0",
    "1e999",
    "9007199254740993",
    "18446744073709551616",
    "-9223372036854775809",
    "0.5",
    "\"\"",
    "{}",
    "[]",
    "[[]]",
    "{\"\":null}",
    "=",
    ";",
    "/",
    "..",
    "%",
    "\n",
    "\0",
    "\u{feff}",
    "\u{202e}",
    "1.1.0",
    "0.3.1",
    "9.9.9",
    "::/0",
    "10.0.0.1/33",
];

/// The results; a target returns for each input whether it could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replayed {
    /// Files of the corpus.
    pub files: usize,
    /// Those that could be read.
    pub files_read: usize,
    /// Inputs made of them.
    pub inputs: usize,
    /// Those that could be read.
    pub inputs_read: usize,
}

/// Calls `target` with every file of `corpus`, and then with random changes of them; panics as
/// `target` does, with the seed and the input. `RUSSET_SEED` sets the seed, which is otherwise
/// constant, and `RUSSET_INPUTS` the number of inputs.
pub fn replay(corpus: &Path, target: impl Fn(&[u8]) -> bool) -> Replayed {
    let files = read(corpus);
    let reads = |(path, bytes): &&(PathBuf, Vec<u8>)| attempt(&target, bytes, &path.display().to_string());
    let files_read = files.iter().filter(reads).count();
    let (seed, inputs) = (number("RUSSET_SEED", 1), number("RUSSET_INPUTS", INPUTS));
    let known: Vec<&[u8]> = files.iter().map(|(_, bytes)| bytes.as_slice()).collect();
    let mut random = Random::new(seed);
    let origin = format!("RUSSET_SEED={seed}");
    let inputs_read = (0..inputs).filter(|_| attempt(&target, &input(&mut random, &known), &origin)).count();
    Replayed {
        files: files.len(),
        files_read,
        inputs: usize::try_from(inputs).unwrap_or(usize::MAX),
        inputs_read,
    }
}

fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(otherwise, |text| {
        text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text:?}"))
    })
}

fn attempt(target: impl Fn(&[u8]) -> bool, bytes: &[u8], origin: &str) -> bool {
    catch_unwind(AssertUnwindSafe(|| target(bytes))).unwrap_or_else(|panic| {
        eprintln!("{origin}: {}", bytes.escape_ascii());
        resume_unwind(panic)
    })
}

/// Sorted, since the order decides what a seed makes.
fn read(corpus: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files =
        std::fs::read_dir(corpus).unwrap_or_else(|error| panic!("read {}: {error}", corpus.display()));
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("list the corpus").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", corpus.display());
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).expect("read an input"))).collect()
}

fn range(random: &mut Random, length: usize) -> std::ops::Range<usize> {
    let begin = random.below(length + 1);
    begin..begin + random.below((length - begin + 1).min(64))
}

fn input(random: &mut Random, corpus: &[&[u8]]) -> Vec<u8> {
    let mut bytes = random.pick(corpus).to_vec();
    let changes = 1 + random.below(CHANGES_MAX);
    let tree = if random.once_in(2) { tree::changed(random, &bytes, corpus, changes) } else { None };
    match tree {
        Some(text) => bytes = text,
        None => (0..changes).for_each(|_| change(random, &mut bytes, corpus)),
    }
    bytes.truncate(INPUT_MAX_BYTES);
    bytes
}

fn change(random: &mut Random, bytes: &mut Vec<u8>, corpus: &[&[u8]]) {
    let place = range(random, bytes.len());
    match random.below(7) {
        0 => drop(bytes.drain(place)),
        1 => bytes.truncate(place.start),
        2 => drop(bytes.splice(place, random.pick(&WORDS).bytes())),
        3 => {
            let copy = bytes[place].to_vec();
            let at = random.below(bytes.len() + 1);
            bytes.splice(at..at, copy);
        }
        4 => {
            let other = random.pick(corpus);
            let part = range(random, other.len());
            drop(bytes.splice(place, other[part].iter().copied()));
        }
        5 => bytes[place].iter_mut().for_each(|byte| *byte = u8::try_from(random.below(256)).unwrap_or(0)),
        _ => {
            if let Some(byte) = bytes.get_mut(place.start) {
                *byte ^= 1 << random.below(8);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn corpus() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), r#"{"name":"n"}"#).unwrap();
        std::fs::write(dir.path().join("b"), "").unwrap();
        dir
    }

    #[test]
    fn the_corpus_comes_first_and_then_the_same_inputs_each_time() {
        let corpus = corpus();
        let seen = || {
            let inputs = RefCell::new(Vec::new());
            let replayed = replay(corpus.path(), |bytes| {
                inputs.borrow_mut().push(bytes.to_vec());
                bytes.is_empty()
            });
            (inputs.into_inner(), replayed)
        };
        let (inputs, replayed) = seen();
        let empty = inputs[2..].iter().filter(|input| input.is_empty()).count();
        let counted = Replayed { files: 2, files_read: 1, inputs: inputs.len() - 2, inputs_read: empty };
        assert_eq!(replayed, counted);
        assert_eq!((&inputs[0][..], &inputs[1][..], inputs.len()), (&br#"{"name":"n"}"#[..], &[][..], 4002));
        assert_eq!(seen().0, inputs);
        let mut different = inputs;
        different.sort();
        different.dedup();
        // Many changes of a short text are equal.
        assert!(different.len() > 1000, "{}", different.len());
    }

    #[test]
    #[should_panic(expected = "on purpose")]
    fn a_panic_of_the_target_is_the_tests() {
        replay(corpus().path(), |bytes| {
            assert!(bytes.len() < 30, "on purpose");
            true
        });
    }
}
