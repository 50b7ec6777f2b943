// Placeholder until measured below.
