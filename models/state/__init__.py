"""State that several rooms change: claims, jobs, Pods, offers and stalls, and all statements that change their rows.

The class of the table of pools is here too, because the matcher reads its rows. Every other table is in the room of its
subject.
"""
