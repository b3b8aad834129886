//! The epoch: a number in 8 bits of the marks of connections, by which rules see whether a
//! connection was judged by the decisions in force (policy.md section 3.5). Pure.

/// 1 to 255. Connections with 0 were never judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epoch(u8);

/// The 8 bits of connections' marks that hold the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkBits {
    shift: u32,
}

/// The connections whose epoch is in one half of all numbers: their bits in a mark, and the bit
/// that tells the halves apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Half {
    pub value: u32,
    pub selector: u32,
}

const UPPER: u8 = 0x80;

// === impl Epoch ===

impl Epoch {
    pub(super) const FIRST: Self = Self(1);

    pub(super) fn next(self) -> Self {
        Self(self.0.checked_add(1).unwrap_or(1))
    }

    /// Whether it is the first one in its half: no connection may have one of that half before it
    /// is used, or a connection of 255 changes ago would count as judged.
    pub(super) const fn begins_a_half(self) -> bool {
        matches!(self.0, 1 | UPPER)
    }

    /// One in the other half.
    pub(super) const fn opposite(self) -> Self {
        Self(self.0 ^ UPPER)
    }

    /// Its number.
    pub const fn number(self) -> u8 {
        self.0
    }
}

// === impl MarkBits ===

impl MarkBits {
    /// The bits from `shift` on; `None` if they are not within a mark.
    pub const fn new(shift: u32) -> Option<Self> {
        if shift <= 24 { Some(Self { shift }) } else { None }
    }

    pub(super) const fn mask(self) -> u32 {
        0xff << self.shift
    }

    pub(super) const fn mark(self, epoch: Epoch) -> u32 {
        (epoch.0 as u32) << self.shift
    }

    /// The epoch in a mark, if the mark has no other bits.
    pub(super) fn epoch(self, mark: u32) -> Option<Epoch> {
        let number = u8::try_from(mark >> self.shift).ok().filter(|number| *number != 0)?;
        (self.mark(Epoch(number)) == mark).then_some(Epoch(number))
    }

    /// The half of an epoch.
    pub(super) const fn half(self, epoch: Epoch) -> Half {
        let upper = (UPPER as u32) << self.shift;
        Half { value: self.mark(epoch) & upper, selector: upper }
    }
}

impl Default for MarkBits {
    /// kube-proxy, Calico, the VPC CNI and Istio use others.
    fn default() -> Self {
        Self { shift: 16 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_go_round_without_zero_and_begin_a_half_twice() {
        let mut epoch = Epoch::FIRST;
        let mut begun = Vec::new();
        for _ in 0..510 {
            epoch = epoch.next();
            assert_ne!(epoch.0, 0);
            begun.extend(epoch.begins_a_half().then_some(epoch.0));
        }
        assert_eq!((epoch, begun), (Epoch::FIRST, vec![128, 1, 128, 1]));
    }

    #[test]
    fn an_epoch_is_read_back_from_its_mark_only() {
        for bits in [MarkBits::default(), MarkBits::new(0).unwrap(), MarkBits::new(24).unwrap()] {
            assert_eq!(bits.epoch(bits.mark(Epoch(200))), Some(Epoch(200)));
            assert_eq!(bits.epoch(0), None);
        }
        assert_eq!(MarkBits::default().mask(), 0x00ff_0000);
        assert_eq!(MarkBits::default().epoch(0x0001_0001), None);
        assert_eq!(MarkBits::default().epoch(0x0101_0000), None);
        assert_eq!(MarkBits::new(25), None);
        assert_eq!(MarkBits::default().half(Epoch(127)).value, 0);
        assert_eq!(MarkBits::default().half(Epoch(128)).value, 0x80_0000);
    }
}
