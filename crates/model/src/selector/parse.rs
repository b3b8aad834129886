//! The selector's parser: recursive descent over bytes, with limits on length and depth, because
//! every user who may edit a pool can write one.

use std::collections::BTreeSet;

use super::{Expr, SelectorError};

/// Limit of nested parentheses and negations; people use three.
const DEPTH_MAX: usize = 100;
/// Longest selector in bytes.
const TEXT_MAX_BYTES: usize = 64 * 1024;
/// Longest label in bytes, from the grammar.
const LABEL_MAX_BYTES: usize = 512;

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

pub(super) fn parse(text: &str) -> Result<Expr, SelectorError> {
    let mut parser = Parser { text, at: 0, depth: 0 };
    if text.len() > TEXT_MAX_BYTES {
        return Err(parser.error("it is longer than 64 KiB"));
    }
    parser.skip_blanks();
    if parser.rest().is_empty() {
        return Ok(Expr::All);
    }
    let expr = parser.or()?;
    if parser.rest().is_empty() { Ok(expr) } else { Err(parser.error("&&, || or the end is wanted")) }
}

/// A label for a selector that is not parsed from text. It must be one that text can have.
pub(super) fn checked_label(label: &str) -> Result<String, SelectorError> {
    match label.bytes().all(in_label) && (1..=LABEL_MAX_BYTES).contains(&label.len()) {
        true => Ok(label.to_owned()),
        false => Err(SelectorError { at: 0, problem: "a label is wanted: 1 to 512 of A-Z a-z 0-9 _ . / -" }),
    }
}

/// A value for such a selector. Text has no escapes.
pub(super) fn checked_value(value: &str) -> Result<String, SelectorError> {
    match value.contains('\'') && value.contains('"') {
        false => Ok(value.to_owned()),
        true => Err(SelectorError { at: 0, problem: "a value cannot have both kinds of quotes" }),
    }
}

fn in_label(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'/' | b'-')
}

// === impl Parser ===

impl<'a> Parser<'a> {
    fn or(&mut self) -> Result<Expr, SelectorError> {
        let mut parts = vec![self.and()?];
        while self.take("||") {
            parts.push(self.and()?);
        }
        Ok(one_or(parts, Expr::Or))
    }

    fn and(&mut self) -> Result<Expr, SelectorError> {
        let mut parts = vec![self.operand()?];
        while self.take("&&") {
            parts.push(self.operand()?);
        }
        Ok(one_or(parts, Expr::And))
    }

    fn operand(&mut self) -> Result<Expr, SelectorError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.error("it nests too deep"));
        }
        let expr = if self.take("!") {
            Expr::Not(Box::new(self.operand()?))
        } else if self.take("(") {
            let inner = self.or()?;
            self.want(")", "a closing parenthesis is wanted")?;
            inner
        } else if self.take("all(") {
            self.want(")", "a closing parenthesis is wanted")?;
            Expr::All
        } else if self.take("global(") {
            self.want(")", "a closing parenthesis is wanted")?;
            Expr::Global
        } else if self.take("has(") {
            let label = self.label()?;
            self.want(")", "a closing parenthesis is wanted")?;
            Expr::Has(label)
        } else {
            self.comparison()?
        };
        self.depth -= 1;
        Ok(expr)
    }

    fn comparison(&mut self) -> Result<Expr, SelectorError> {
        let label = self.label()?;
        if self.take("==") {
            Ok(Expr::Equals(label, self.string()?))
        } else if self.take("!=") {
            Ok(Expr::NotEquals(label, self.string()?))
        } else if self.take("contains") {
            Ok(Expr::Contains(label, self.string()?))
        } else if self.take_two("starts", "with") {
            Ok(Expr::StartsWith(label, self.string()?))
        } else if self.take_two("ends", "with") {
            Ok(Expr::EndsWith(label, self.string()?))
        } else if self.take_two("not", "in") {
            Ok(Expr::NotIn(label, self.set()?))
        } else if self.take("in") {
            Ok(Expr::In(label, self.set()?))
        } else {
            Err(self.error("an operator is wanted: ==, !=, contains, starts with, ends with, in, not in"))
        }
    }

    fn label(&mut self) -> Result<String, SelectorError> {
        let len = self.rest().bytes().take_while(|b| in_label(*b)).count();
        match len {
            0 => Err(self.error("a label is wanted")),
            _ if len > LABEL_MAX_BYTES => Err(self.error("the label is longer than 512 bytes")),
            _ => {
                let label = self.rest()[..len].to_owned();
                self.advance(len);
                Ok(label)
            }
        }
    }

    fn string(&mut self) -> Result<String, SelectorError> {
        let quote = match self.rest().chars().next() {
            Some(quote @ ('\'' | '"')) => quote,
            _ => return Err(self.error("a quoted string is wanted")),
        };
        let inside = &self.rest()[1..];
        let Some(len) = inside.find(quote) else { return Err(self.error("the string does not end")) };
        let text = inside[..len].to_owned();
        self.advance(len + 2);
        Ok(text)
    }

    fn set(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        self.want("{", "a set is wanted: {\"a\", \"b\"}")?;
        let mut set = BTreeSet::new();
        while !self.take("}") {
            set.insert(self.string()?);
            if !self.take(",") {
                self.want("}", "',' or '}' is wanted")?;
                break;
            }
        }
        Ok(set)
    }

    fn take_two(&mut self, first: &str, second: &str) -> bool {
        let before = self.at;
        let both = self.take(first) && self.take(second);
        if !both {
            self.at = before;
        }
        both
    }

    fn take(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.advance(token.len());
        }
        found
    }

    fn want(&mut self, token: &str, problem: &'static str) -> Result<(), SelectorError> {
        if self.take(token) { Ok(()) } else { Err(self.error(problem)) }
    }

    fn advance(&mut self, bytes: usize) {
        self.at += bytes;
        self.skip_blanks();
    }

    fn skip_blanks(&mut self) {
        self.at += self.rest().bytes().take_while(|b| matches!(b, b' ' | b'\t')).count();
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn error(&self, problem: &'static str) -> SelectorError {
        SelectorError { at: self.at, problem }
    }
}

pub(super) fn one_or(mut parts: Vec<Expr>, many: fn(Vec<Expr>) -> Expr) -> Expr {
    match (parts.len(), parts.pop()) {
        (1, Some(only)) => only,
        (_, last) => {
            parts.extend(last);
            many(parts)
        }
    }
}
