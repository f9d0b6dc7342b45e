"""State that several rooms change: claims, jobs, Pods, offers and stalls, and all statements that change their rows.

Every other table is in the room of its subject.
"""
