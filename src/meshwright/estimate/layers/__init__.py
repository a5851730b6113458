"""What one layer costs on one rank: seconds, bytes and messages of its items and operators."""
