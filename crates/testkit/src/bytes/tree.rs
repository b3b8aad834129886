//! Changes JSON into other JSON, to get past the parser to the readers of members.

use serde_json::Value;

use super::WORDS;
use crate::Random;

/// `text` with random changes of one value each: it is deleted, duplicated, or replaced by a word
/// or by another value of this or another document. None if it is not JSON.
pub(super) fn changed(random: &mut Random, text: &[u8], corpus: &[&[u8]], changes: usize) -> Option<Vec<u8>> {
    let mut tree: Value = serde_json::from_slice(text).ok()?;
    for _ in 0..changes {
        let new = value(random, &tree, corpus);
        change(random, &mut tree, new);
    }
    serde_json::to_vec(&tree).ok()
}

/// A word, a long text, a number, or what stands somewhere else.
fn value(random: &mut Random, tree: &Value, corpus: &[&[u8]]) -> Value {
    match random.below(5) {
        0 => {
            let word = random.pick(&WORDS);
            serde_json::from_str(word).unwrap_or_else(|_| Value::from(word))
        }
        1 => Value::from("x".repeat(1 << random.below(14))),
        2 => Value::from(random.next_u64() >> random.below(64)),
        3 => part(random, tree).clone(),
        _ => {
            let other = serde_json::from_slice(random.pick(corpus)).unwrap_or(Value::Null);
            part(random, &other).clone()
        }
    }
}

/// The tree or something in it: the deeper, the rarer.
fn part<'a>(random: &mut Random, tree: &'a Value) -> &'a Value {
    let inside: Vec<&Value> = match tree {
        Value::Object(members) => members.values().collect(),
        Value::Array(items) => items.iter().collect(),
        _ => Vec::new(),
    };
    match inside.len() {
        0 => tree,
        _ if random.once_in(4) => tree,
        count => {
            let at = random.below(count);
            part(random, inside[at])
        }
    }
}

fn change(random: &mut Random, tree: &mut Value, new: Value) {
    let here = random.once_in(3);
    match tree {
        Value::Object(members) if !members.is_empty() => {
            let keys: Vec<String> = members.keys().cloned().collect();
            let key = &keys[random.below(keys.len())];
            match (here, random.below(4)) {
                (true, 0) => drop(members.remove(key)),
                (true, 1) => drop(members.insert(random.pick(&WORDS).to_owned(), new)),
                (true, _) => drop(members.insert(key.clone(), new)),
                (false, _) => members.get_mut(key).into_iter().for_each(|it| change(random, it, new.clone())),
            }
        }
        Value::Array(items) if !items.is_empty() => {
            let at = random.below(items.len());
            match (here, random.below(4)) {
                (true, 0) => drop(items.remove(at)),
                (true, 1) => items.insert(at, items[at].clone()),
                (true, 2) => items.push(new),
                (true, _) => items[at] = new,
                (false, _) => change(random, &mut items[at], new),
            }
        }
        leaf => *leaf = new,
    }
}
