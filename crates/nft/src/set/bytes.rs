//! The bytes of a part of a key, of which large sets have millions.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// Bytes that need no memory of their own if they are few, as those of all types of keys that nft knows.
#[derive(Clone)]
pub(crate) enum Bytes {
    Few { length: u8, bytes: [u8; FEW] },
    Many(Box<[u8]>),
}

/// The length of the longest types: addresses of IPv6, and names of interfaces.
const FEW: usize = 16;

// === impl Bytes ===

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Few { length, bytes } => bytes.get(..usize::from(*length)).unwrap_or_default(),
            Self::Many(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for Bytes {
    fn from(slice: &[u8]) -> Self {
        let mut bytes = [0; FEW];
        match (bytes.get_mut(..slice.len()), u8::try_from(slice.len())) {
            (Some(part), Ok(length)) => {
                part.copy_from_slice(slice);
                Self::Few { length, bytes }
            }
            _ => Self::Many(slice.into()),
        }
    }
}

impl<const N: usize> From<[u8; N]> for Bytes {
    fn from(bytes: [u8; N]) -> Self {
        Self::from(bytes.as_slice())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from(bytes.as_slice())
    }
}

impl Default for Bytes {
    fn default() -> Self {
        Self::from([])
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Bytes {}

impl PartialOrd for Bytes {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Bytes {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for Bytes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_bytes_compare_as_their_slices_do() {
        let all: Vec<Vec<u8>> =
            [0, 1, 4, 15, 16, 17, 40].iter().flat_map(|len| [vec![0; *len], vec![7; *len]]).collect();
        for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
            let [x, y] = [a, b].map(|it| Bytes::from(it.as_slice()));
            assert_eq!((&*x, &*y), (a.as_slice(), b.as_slice()));
            assert_eq!((x == y, x.cmp(&y)), (a == b, a.cmp(b)));
        }
    }
}
