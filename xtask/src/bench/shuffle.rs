//! Orders that differ from round to round, so that no implementation always runs after the same other one.

/// A xorshift generator: benchmarks need different orders, not secrets.
pub struct Shuffler(u64);

// === impl Shuffler ===

impl Shuffler {
    /// The same seed gives the same orders.
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// 0 to `count` - 1, each once.
    pub fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, self.below(last + 1));
        }
        order
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_holds_everything_once_and_orders_differ() {
        let mut shuffler = Shuffler::new(42);
        let orders: Vec<Vec<usize>> = (0..20).map(|_| shuffler.order(5)).collect();
        for order in &orders {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4]);
        }
        assert!(orders.iter().any(|order| order != &orders[0]));
    }
}
