"""Code that the gate asks questions about: written for it, in three languages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Snippet:
    path: str
    scope: str
    text: str


SNIPPETS = (
    Snippet(
        "orders/queue.py",
        "OrderQueue",
        '''class OrderQueue:
    """Orders that wait for the kitchen, oldest first."""

    def __init__(self, limit=50):
        self.limit = limit
        self.waiting = []

    def push(self, order):
        if len(self.waiting) >= self.limit:
            raise QueueFull(f"{self.limit} orders are waiting")
        self.waiting.append(order)

    def pop(self):
        return self.waiting.pop(0) if self.waiting else None
''',
    ),
    Snippet(
        "server/retry.go",
        "Retry",
        """// Retry calls send until it succeeds or the attempts are used up.
func Retry(attempts int, pause time.Duration, send func() error) error {
	var err error
	for i := 0; i < attempts; i++ {
		if err = send(); err == nil {
			return nil
		}
		time.Sleep(pause << i)
	}
	return fmt.Errorf("gave up after %d attempts: %w", attempts, err)
}
""",
    ),
    Snippet(
        "web/cart.ts",
        "Cart.total",
        """export class Cart {
  private items: Item[] = [];

  add(item: Item): void {
    if (item.count < 1) throw new RangeError("count must be at least 1");
    this.items.push(item);
  }

  total(rate: number): number {
    const sum = this.items.reduce((all, item) => all + item.price * item.count, 0);
    return Math.round(sum * (1 + rate) * 100) / 100;
  }
}
""",
    ),
    Snippet(
        "orders/kitchen.py",
        "Kitchen.work",
        '''class Kitchen:
    def __init__(self, queue, cooks):
        self.queue = queue
        self.cooks = cooks

    def work(self):
        """Give the next order to the first cook who is free."""
        free = next((cook for cook in self.cooks if not cook.busy), None)
        order = self.queue.pop() if free else None
        if order is not None:
            free.start(order)
''',
    ),
)

QUESTIONS = (
    "What happens when an order is pushed while the queue is full?",
    "How long does the program wait between two attempts to send?",
    "How is the total of the cart computed?",
)
